"""Two hosts with V100s, from nothing to a green doctor, through a reboot, and back from drift.

The cards and their driver are simulated (lab.py says how); Debian, systemd, apt, DKMS, reboots and
what is served are real. The tests of this file are steps of one story and run in order.
"""

import json
import re
import time

import pytest
import testinfra
from lab import FAULTS, free_port

DRIVER = "580.95.05"
SECONDS_A_HOST = 25
# The one thing that a simulated card leaves wrong.
WAIVER = """\
- id: torch-arch
  reason: The cards are simulated, and what is served runs on the CPU
  expires: 2099-12-31
"""


@pytest.fixture(scope="module")
def hosts(lab_host, pip):
    """Two hosts that have Debian's base alone, and two cards each."""
    environment, binds = pip
    options = {"bare": True, "binds": binds, "environment": environment}
    hosts = [lab_host(name, **options) for name in ("v100-a", "v100-b")]
    for host in hosts:
        waivers = "mkdir /etc/volta-doctor && cat >/etc/volta-doctor/waivers.yaml"
        host.run(waivers, data=WAIVER.encode())
    return hosts


@pytest.fixture(scope="module")
def site(play, hosts, repo, repository, pip, tmp_path_factory):
    """Return a function that applies a playbook; each host has a port, as they share a network."""
    scratch = tmp_path_factory.mktemp("site")
    for host in hosts:
        stack = (repo / "stack.yaml").read_text().replace("port: 8000", f"port: {free_port()}")
        (scratch / f"stack-{host.name}.yaml").write_text(stack)
    variables = {
        **repository.variables,
        "preflight_stack": str(scratch) + "/stack-{{ inventory_hostname }}.yaml",
        "preflight_bundles": str(scratch / "bundles"),
        "preflight_profile": "cpu",
        "runtime_environment": pip[0],
    }

    def run(*arguments, playbook="site.yml", only=hosts, **more):
        return play(playbook, only, *arguments, **variables, **more)

    return run


def doctor(host):
    """The doctor's exit code, and what it finds that is neither fine nor waived."""
    result = host.run("/opt/volta/current/venv/bin/volta-doctor check --format json", check=False)
    findings = json.loads(result.stdout)["findings"]
    bad = [
        f for f in findings if f["status"] in ("fail", "warn", "unknown") and not f.get("waived")
    ]
    return result.returncode, {f["id"]: f["message"] for f in bad}


def changed(outcome, host):
    """The names of the tasks that changed something on a host, or would."""
    named = re.findall(
        r"^TASK \[(.+?)\] \*+\n(.*?)(?=^TASK|^PLAY|^RUNNING)", outcome.output, re.M | re.S
    )
    return [name for name, said in named if f"changed: [{host.name}" in said]


def test_a_check_of_a_fresh_host_foretells_and_changes_nothing(site, hosts):
    outcome = site("--check", "--diff")
    for host in hosts:
        assert outcome.recap[host.name]["failed"] == 0
        assert any(task.startswith("driver : ") for task in changed(outcome, host))
        assert host.run("ls -d /opt/volta /etc/volta", check=False).returncode != 0
        assert DRIVER not in host.run("dpkg -l").stdout


def test_one_run_makes_both_hosts_right(site, hosts):
    outcome = site()
    for host in hosts:
        assert outcome.recap[host.name]["failed"] == 0
        assert doctor(host) == (0, {})


def test_a_second_run_changes_nothing_and_is_quick(site, hosts):
    start = time.monotonic()
    outcome = site()
    seconds = time.monotonic() - start
    print(f"a second run over {len(hosts)} hosts took {seconds:.0f} s")
    assert [outcome.recap[host.name]["changed"] for host in hosts] == [0, 0], outcome.output
    assert seconds < SECONDS_A_HOST * len(hosts)


def test_a_check_of_a_right_host_finds_nothing(site, hosts):
    outcome = site("--check", "--diff")
    assert [changed(outcome, host) for host in hosts] == [[], []]


def test_what_a_stranger_finds_on_the_host(hosts):
    for host in hosts:
        there = testinfra.get_host(
            f"ssh://root@127.0.0.1:{host.port}",
            ssh_identity_file=str(host.key),
            ssh_extra_args="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
        )
        assert there.package("nvidia-kernel-dkms").version == f"{DRIVER}-1"
        for unit in ("nvidia-persistenced", "volta-gpu-mode", "volta-serve", "volta-doctor.timer"):
            assert there.service(unit).is_enabled
            assert there.service(unit).is_running
        assert there.file("/opt/volta/current").is_symlink
        assert "blacklist nouveau" in there.file("/etc/modprobe.d/volta-driver.conf").content_string
        assert there.run("test -c /dev/nvidia-uvm").rc == 0
        held = there.check_output("apt-mark showhold").splitlines()
        assert {"nvidia-kernel-dkms", "nvidia-driver-cuda"} <= set(held)
        assert "upgraded, 0" in there.check_output("apt-get --simulate dist-upgrade | tail -1")
        assert there.file("/var/lib/prometheus/node-exporter/volta_doctor.prom").size > 1000


def test_verify_judges_and_changes_nothing(site, hosts):
    outcome = site(playbook="verify.yml")
    assert [outcome.recap[host.name]["changed"] for host in hosts] == [0, 0]


def test_a_reboot_is_survived(hosts):
    for host in hosts:
        before = host.run("cat /proc/sys/kernel/random/boot_id").stdout
        host.run("systemctl reboot", check=False)
        time.sleep(1)
        host.wait(90)
        assert host.run("cat /proc/sys/kernel/random/boot_id").stdout != before
    for host in hosts:
        host.run("until systemctl is-active volta-serve; do sleep 1; done", 120)
        assert doctor(host) == (0, {})


def test_ecc_that_is_off_is_on_after_one_reboot(site, hosts):
    """Off as of the last boot, as someone has left it; on is pending until the next."""
    host = hosts[0]
    host.run(FAULTS["ecc-off"])
    code, bad = doctor(host)
    assert code != 0
    assert "ecc-mode" in bad
    before = host.run("cat /proc/sys/kernel/random/boot_id").stdout
    foretold = site("--check", only=[host])
    assert all(task.startswith(("gpu_mode : ", "reboot : ")) for task in changed(foretold, host))
    assert changed(foretold, host)
    site(only=[host])
    assert host.run("cat /proc/sys/kernel/random/boot_id").stdout != before
    modes = host.run(
        "nvidia-smi --query-gpu=ecc.mode.current,ecc.mode.pending --format=csv,noheader"
    )
    assert modes.stdout.splitlines() == ["Enabled, Enabled"] * 2
    assert doctor(host) == (0, {})


DRIFT = {
    "apt-mark unhold nvidia-driver-cuda": "driver : ",
    "nvidia-smi -c EXCLUSIVE_PROCESS": "gpu_mode : Set the GPUs",
    "echo '# mine' >>/etc/systemd/system/volta-serve.service": "service : Render the unit",
    "systemctl disable --now volta-doctor.timer": "monitoring : ",
}


def test_a_check_lists_exactly_the_drift_and_a_run_mends_it(site, hosts):
    host = hosts[1]
    for command in DRIFT:
        host.run(command)
    listed = changed(site("--check", "--diff", only=[host]), host)
    for start in DRIFT.values():
        assert any(task.startswith(start) for task in listed), (start, listed)
    roles = {"driver", "gpu_mode", "service", "monitoring"}
    assert {task.split(" : ")[0] for task in listed} == roles, listed
    site(only=[host])
    assert changed(site("--check", "--diff", only=[host]), host) == []
    assert doctor(host) == (0, {})
