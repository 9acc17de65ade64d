"""Two hosts with V100s, from nothing to a green doctor, through a reboot, and back from drift.

The cards and their driver are simulated (lab.py says how); Debian, systemd, apt, DKMS, reboots and
what is served are real. The tests of this file are steps of one story and run in order.
"""

import json
import time

import pytest
from lab import GPUS, boot, free_port

CHECK = "/opt/volta/current/venv/bin/volta-doctor check --format json"
SECONDS_A_HOST = 25


@pytest.fixture(scope="module")
def hosts(lab, pip):
    """Two hosts that have Debian's base alone, and two cards each."""
    environment, binds = pip
    options = {"gpus": GPUS, "bare": True, "binds": binds, "environment": environment}
    hosts = [boot(lab, name, free_port(), **options) for name in ("v100-a", "v100-b")]
    try:
        for host in hosts:
            host.wait(90)
        yield hosts
    finally:
        for host in hosts:
            host.stop()


@pytest.fixture(scope="module")
def site(play, hosts, repo, repository, pip, tmp_path_factory):
    """Return a function that applies site.yml to the hosts; they share this machine's network."""
    scratch = tmp_path_factory.mktemp("site")
    variables = {
        **repository.variables,
        "preflight_bundles": str(scratch / "bundles"),
        # The cards are simulated: what is served runs on the CPU.
        "preflight_profile": "cpu",
        "runtime_environment": pip[0],
    }
    for host in hosts:
        stack = (repo / "stack.yaml").read_text().replace("port: 8000", f"port: {free_port()}")
        (scratch / f"stack-{host.name}.yaml").write_text(stack)
    variables["preflight_stack"] = str(scratch) + "/stack-{{ inventory_hostname }}.yaml"

    def run(*arguments, only=hosts, **more):
        return play("site.yml", only, *arguments, **variables, **more)

    return run


def doctor(host):
    """The doctor's exit code, and its findings by id where they are not fine."""
    result = host.run(CHECK, check=False)
    report = json.loads(result.stdout)
    bad = {
        f["id"]: f["message"]
        for f in report["findings"]
        if f["status"] not in ("ok", "info", "skip")
    }
    return result.returncode, bad


def test_a_check_of_a_fresh_host_foretells_and_changes_nothing(site, hosts):
    outcome = site("--check", "--diff")
    for host in hosts:
        assert outcome.recap[host.name]["failed"] == 0
        assert host.run("ls -d /opt/volta /etc/volta", check=False).returncode != 0
        assert "580.95.05" not in host.run("dpkg -l").stdout


def test_one_run_makes_both_hosts_right(site, hosts):
    outcome = site()
    for host in hosts:
        assert outcome.recap[host.name]["failed"] == 0
        assert doctor(host) == (0, {})


def test_a_second_run_changes_nothing_and_is_quick(site, hosts):
    start = time.monotonic()
    outcome = site()
    seconds = time.monotonic() - start
    print(f"second run over {len(hosts)} hosts: {seconds:.0f} s")
    assert [outcome.recap[host.name]["changed"] for host in hosts] == [0, 0], outcome.output
    assert seconds < SECONDS_A_HOST * len(hosts)
