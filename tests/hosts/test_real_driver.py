"""The driver role with the distribution's own driver: fetched from Debian, built by DKMS, no fakes.

Only the loading is left out (driver_load: false), for there is no card: a run ends with the module
built and proved, as it does for an image. Takes some minutes and Debian's mirror.
"""

import pytest

PLAY = """
- name: Install Debian's own driver
  hosts: volta
  gather_facts: false
  tasks:
    - name: Look at the host
      ansible.builtin.include_role:
        name: preflight
        tasks_from: host.yml
        public: true
    - name: Install the driver
      ansible.builtin.include_role:
        name: driver
"""


@pytest.mark.slow
def test_debians_driver_is_built_for_the_kernel_and_kept(
    repo, v100_host, play, tmp_path, monkeypatch
):
    host = v100_host("real-driver")
    components = "main contrib non-free non-free-firmware"
    host.run(f"sed -i 's/ main$/ {components}/' /etc/apt/sources.list")
    playbook = tmp_path / "driver.yml"
    playbook.write_text(PLAY)
    variables = {"driver_source": "distribution", "driver_branch": 535, "driver_load": False}
    monkeypatch.setenv("ANSIBLE_ROLES_PATH", str(repo / "playbooks/roles"))
    monkeypatch.setenv("ANSIBLE_LIBRARY", str(repo / "provision/volta_provision/modules"))

    outcome = play(str(playbook), [host], timeout=1800, **variables)
    assert "has had no fixes since" in outcome.words  # an ended branch is taken with a warning

    kernel = host.run("cat /proc/sys/kernel/osrelease").stdout.strip()
    built = host.run(f"modinfo -k {kernel} -F version nvidia-current").stdout.strip()
    packaged = host.run("dpkg-query -W -f '${Version}' nvidia-kernel-dkms").stdout
    assert packaged.startswith(f"{built}-")
    assert built.startswith("535.")
    held = host.run("apt-mark showhold").stdout.split()
    assert {"nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1", "nvidia-persistenced"} <= set(held)
    assert "0 upgraded" in host.run("apt-get -s -o APT::Get::Show-Upgraded=0 upgrade").stdout

    again = play(str(playbook), [host], **variables)
    assert again.recap[host.name]["changed"] == 0
