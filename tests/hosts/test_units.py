"""The units on a real host: how far they are confined, and that the server lives under it."""

import time

import pytest
from lab import free_port

KEY = "sk-volta-first-key"
UNIT = "volta-serve.service"
# The most that `systemd-analyze security` may find open, in tenths.
EXPOSURE = {UNIT: 25, "volta-gpu-mode.service": 25, "volta-doctor.service": 40}
PROBE = """
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print(path, "open")
    except OSError as error:
        print(path, errno.errorcode[error.errno])
"""


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """The file on the control node with the key that clients must send."""
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def apply(play, repository, repo, pip, key, port, tmp_path_factory):
    """Return a function that applies site.yml to a host."""
    scratch = tmp_path_factory.mktemp("units")
    stack = (repo / "stack.yaml").read_text().replace("port: 8000", f"port: {port}")
    (scratch / "stack.yaml").write_text(stack)
    (scratch / "moved.yaml").write_text(stack.replace(f"port: {port}", f"port: {port + 1}"))
    variables = {
        **repository.variables,
        "preflight_bundles": str(scratch / "bundles"),
        "preflight_profile": "cpu",
        "runtime_environment": pip[0],
        "service_api_key_file": str(key),
        "service_watchdog": 12,
    }

    def run(host, *arguments, stack="stack.yaml", check=True):
        # Without the last role: the doctor has no cards to be content with here.
        arguments = ("--skip-tags", "verify", *arguments)
        chosen = {**variables, "preflight_stack": str(scratch / stack)}
        return play("site.yml", [host], *arguments, check=check, **chosen)

    return run


@pytest.fixture(scope="module")
def served(lab_host, apply, pip):
    """A host that serves, and what Ansible said on the way, with -vv and --diff."""
    environment, binds = pip
    host = lab_host("units", environment=environment, binds=binds)
    return host, apply(host, "-vv", "--diff")


@pytest.fixture(scope="module")
def host(served):
    return served[0]


def shown(host, name, unit=UNIT):
    return host.run(f"systemctl show -P {name} {unit}").stdout.strip()


def answer(host, port, key=None):
    """The status that a client gets."""
    url = f"http://127.0.0.1:{port}/v1/models"
    script = f"python3 - {url} {key or ''}"
    code = (
        "import sys, urllib.request as u, urllib.error\n"
        "r = u.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[2]}"
        " if len(sys.argv) > 2 else {})\n"
        "try: print(u.urlopen(r).status)\n"
        "except urllib.error.HTTPError as e: print(e.code)\n"
    )
    return int(host.run(script, data=code.encode()).stdout)


@pytest.mark.parametrize("unit", EXPOSURE)
def test_the_unit_is_sound_and_confined(host, unit):
    said = host.run(f"systemd-analyze verify {unit}", check=False).stdout
    assert unit not in said, said
    said = host.run(f"systemd-analyze security --no-pager --threshold={EXPOSURE[unit]} {unit}")
    print(said.stdout.strip().splitlines()[-1])


def test_the_server_has_the_cards_and_no_other_device(host):
    host.run("mknod -m 666 /dev/loop-control c 10 237; mknod -m 666 /dev/tty42 c 4 42", check=False)
    group = shown(host, "ControlGroup")
    pid = shown(host, "MainPID")
    cards = [f"/dev/{name}" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")]
    others = ["/dev/loop-control", "/dev/tty42"]
    enter = f"echo $$ >/sys/fs/cgroup{group}/cgroup.procs && exec nsenter -t {pid} -m"
    said = host.run(f"{enter} python3 - {' '.join([*cards, *others])}", data=PROBE.encode()).stdout
    found = dict(line.split() for line in said.splitlines())
    # There is no card behind the nodes: these two say that the kernel let us ask.
    assert {found[path] for path in cards} <= {"ENXIO", "ENODEV"}, found
    assert {found[path] for path in others} == {"EPERM"}, found


def test_it_runs_as_nobody_of_this_host(host):
    user = host.run(f"ps -o user= -p {shown(host, 'MainPID')}").stdout.strip()
    assert user not in ("root", "")
    assert host.run(f"grep -c '^{user}:' /etc/passwd", check=False).stdout.strip() == "0"


def test_memory_is_bounded_as_the_lock_says(host):
    text = host.run("cat /opt/volta/current/stack.lock.yaml").stdout
    bounds = dict(line.split(":") for line in text.split("memory_gib:\n")[1].splitlines()[:2])
    bounds = {name.strip(): int(value) << 30 for name, value in bounds.items()}
    assert int(shown(host, "MemoryMax")) == bounds["max"]
    assert int(shown(host, "MemoryHigh")) == bounds["high"]


def test_the_bound_of_memory_is_in_force(host):
    limit = f"/sys/fs/cgroup{shown(host, 'ControlGroup')}/memory.max"
    found = host.run(f"cat {limit}", check=False)
    if found.returncode != 0:
        pytest.skip("this machine gives memory to cgroup v1: no controller is left for its hosts")
    assert found.stdout.strip() == shown(host, "MemoryMax")


def test_the_key_is_asked_for_and_shown_nowhere(served, port):
    host, outcome = served
    assert answer(host, port) == 401
    assert answer(host, port, KEY) == 200
    pid = shown(host, "MainPID")
    places = f"systemctl show {UNIT}; cat /proc/{pid}/environ /proc/{pid}/cmdline; journalctl -b"
    assert KEY not in host.run(places).stdout
    assert KEY not in outcome.output
    assert host.run("stat -c '%U %a' /etc/volta/api-key").stdout.split() == ["root", "400"]


def test_another_key_starts_the_server_anew_and_the_same_does_not(host, apply, key, port):
    before = shown(host, "MainPID")
    outcome = apply(host, "--tags", "service")
    assert outcome.recap[host.name]["changed"] == 0, outcome.output
    assert shown(host, "MainPID") == before
    key.write_text("sk-volta-second-key\n")
    outcome = apply(host, "--tags", "service", "--diff")
    assert "sk-volta" not in outcome.output
    assert answer(host, port, KEY) == 401
    assert answer(host, port, "sk-volta-second-key") == 200


def test_a_server_that_hangs_is_started_anew(host, port):
    before = shown(host, "MainPID")
    host.run(f"kill -STOP {before}")
    deadline = time.monotonic() + 120
    while shown(host, "NRestarts") == "0" or shown(host, "ActiveState") != "active":
        assert time.monotonic() < deadline, host.run(f"systemctl status {UNIT}", check=False).stdout
        time.sleep(1)
    assert shown(host, "MainPID") != before
    assert "Watchdog timeout" in host.run(f"journalctl -b -u {UNIT}").stdout
    assert answer(host, port) == 401


def test_a_wrong_flag_ends_it_for_good(host):
    settings = "/opt/volta/current/serve.env"
    host.run(f"cp {settings} /root/serve.env; echo VOLTA_SERVE_MAX_NUM_SEQS=many >>{settings}")
    host.run(f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}", check=False)
    deadline = time.monotonic() + 60
    while shown(host, "ActiveState") != "failed":
        assert time.monotonic() < deadline
        time.sleep(1)
    time.sleep(3)  # longer than RestartSec
    assert shown(host, "ActiveState") == "failed"
    assert shown(host, "NRestarts") == "0"
    assert "many" in host.run(f"journalctl -b -u {UNIT} -n 20").stdout
    host.run(f"cp /root/serve.env {settings}; systemctl restart {UNIT}", 120)


def test_a_release_that_does_not_serve_gives_way_to_the_one_before(host, apply, port):
    """Its port is free when the host is judged, and taken once the release is made."""
    before = host.run("readlink /opt/volta/current").stdout
    made = "$(ls -d /opt/volta/releases/*/ | wc -l) -gt 1"
    squat = f"exec python3 -m http.server {port + 1} --bind 127.0.0.1"
    host.run(f"systemd-run -u squatter sh -c 'until [ {made} ]; do sleep 0.2; done; {squat}'")
    outcome = apply(host, "--skip-tags", "monitoring", stack="moved.yaml", check=False)
    host.run("systemctl stop squatter")
    assert outcome.code != 0
    assert "serves again" in outcome.words, outcome.output
    assert f"port {port + 1} on 127.0.0.1 is in use" in outcome.words
    assert host.run("readlink /opt/volta/current").stdout == before
    assert answer(host, port) == 401
    apply(host)
    assert host.run("readlink /opt/volta/current").stdout == before
    assert answer(host, port) == 401
