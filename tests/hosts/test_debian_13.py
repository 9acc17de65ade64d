"""Debian 13: the driver and the modes of the cards, from its own packages' names and key."""

from lab import driver_variables

TAGS = ("--tags", "preflight,host,driver,gpu_mode")


def test_a_host_is_made_right_and_stays_so(v100_host, play, repository):
    host = v100_host("trixie", suite="trixie")
    assert host.run("cat /etc/debian_version").stdout.startswith("13")
    variables = driver_variables(repository.mirror.url, repository.fingerprint, "debian13")
    play("site.yml", [host], *TAGS, **variables)
    assert "580.95.05" in host.run("cat /proc/driver/nvidia/version").stdout
    host.run("systemctl is-active volta-gpu-mode nvidia-persistenced")
    again = play("site.yml", [host], *TAGS, **variables)
    assert again.recap[host.name]["changed"] == 0
