"""Collectors of the release, its venv and its service, and of nvidia-smi."""

import hashlib
import http.server
import json
import socketserver
import threading
import time
import xmlrpc.server

import pytest

from volta_doctor.facts import release, service, smi
from volta_doctor.probe import Answer, CannotLook, NobodyThere, NotHere, Probe

ROOT = "/opt/volta"
RELEASE = f"{ROOT}/releases/0123456789ab"
SITE = f"{RELEASE}/venv/lib/python3.11/site-packages"
URL = "http://127.0.0.1:8000"
LOCK = """schema: 1
profile: cpu
engine: embedded
version: 0.1.0
model: {name: m}
packages:
  - {name: torch, version: 2.13.0+cpu, sha256: [aa]}
  - {name: typing_extensions, version: 4.15.0}
  - {name: tomli, version: 2.3.0, marker: "python_version < '3.11'"}
"""
MANIFEST = {
    "schema": 1,
    "digest": f"sha256:{hashlib.sha256(LOCK.encode()).hexdigest()}",
    "profile": "cpu",
    "manager": "supervisor",
    "unit": "volta-serve",
    "url": URL,
    "model": "m",
    "model_dir": f"{ROOT}/models/m",
    "python": "3.11",
    "created": "2026-11-30T09:00:00+00:00",
    "later": "keys are tolerated",
}


def metadata(name, version, *requires):
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    return "Metadata-Version: 2.4\n" + "\n".join(lines) + "\n\nText\nVersion: no header\n"


TORCH = metadata(
    "torch",
    "2.13.0+cpu",
    "typing-extensions>=4.10.0",
    "sympy>=1.13",
    'setuptools; python_version >= "3.12"',
    'opt-einsum>=3.3; extra == "opt-einsum"',
)
FILES = {
    f"{ROOT}/current": "-> releases/0123456789ab",
    f"{RELEASE}/release.json": json.dumps(MANIFEST),
    f"{RELEASE}/stack.lock.yaml": LOCK,
    f"{RELEASE}/venv/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n",
    f"{SITE}/torch-2.13.0+cpu.dist-info/METADATA": TORCH,
    f"{SITE}/torch/version.py": (
        "from typing import Optional\n__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"
    ),
    f"{SITE}/typing_extensions-4.15.0.dist-info/METADATA": metadata("typing_extensions", "4.15.0"),
    f"{SITE}/typing_extensions-4.15.0.dist-info/direct_url.json": json.dumps(
        {"url": "file:///x", "archive_info": {"hashes": {"sha256": "a" * 64}}}
    ),
    f"{SITE}/sympy-1.12.dist-info/METADATA": metadata("sympy", "1.12"),
}


def test_release(host):
    facts = release.collect(host(files=FILES))
    assert facts.directory == RELEASE
    assert facts.lock_digest == facts.manifest.digest
    # the project itself is locked too, and a marker for another Python is not
    assert [p.name for p in facts.locked] == ["volta-stack", "torch", "typing_extensions"]
    assert {p.name: p.sha256 for p in facts.installed} == {
        "torch": None,
        "typing-extensions": "a" * 64,
        "sympy": None,
    }
    assert facts.conflicts == ["torch 2.13.0+cpu requires sympy>=1.13, but 1.12 is installed"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({f"{ROOT}/current": "-> releases/gone"}, "releases/gone, which does not exist"),
        ({f"{RELEASE}/release.json": "{}"}, "missing required field `schema`"),
        ({f"{RELEASE}/stack.lock.yaml": "a: [\n"}, "stack.lock.yaml"),
        ({f"{RELEASE}/stack.lock.yaml": LOCK.replace("0.1.0", "1.5")}, r"\$.version"),
        ({f"{RELEASE}/stack.lock.yaml": LOCK.replace(" < '3.11'", " <")}, "marker of tomli"),
        ({f"{RELEASE}/venv/pyvenv.cfg": "home = /usr/bin\n"}, "no Python version"),
    ],
)
def test_a_broken_release_is_named(host, change, reason):
    with pytest.raises(CannotLook, match=reason):
        release.collect(host(files=FILES | change))


def test_where_the_install_root_is(host):
    mine = {"/home/u/.local/share/volta/current": "-> releases/x"}
    theirs = {"/opt/volta/current": "-> releases/x"}
    user = {"env": {"HOME": "/home/u"}, "is_root": False}
    assert release.install_root(host(files=theirs, **user)) == "/opt/volta"
    assert release.install_root(host(files=mine, **user)) == "/home/u/.local/share/volta"
    assert release.install_root(host()) == "/opt/volta"
    assert release.install_root(host(env={"VOLTA_ROOT": "/srv/v"})) == "/srv/v"


RPC = f"{ROOT}/service/supervisord.sock supervisor.getProcessInfo volta-serve"
RUNNING = {"statename": "RUNNING", "pid": 7, "start": 100, "now": 160, "spawnerr": ""}
MODELS = json.dumps({"object": "list", "data": [{"id": "m"}]})
UP = {f"{URL}/health": Answer(200, "", 0.01), f"{URL}/v1/models": Answer(200, MODELS, 0.01)}


def test_service_under_supervisor(host):
    facts = service.collect(host(files=FILES, rpcs={RPC: RUNNING}, urls=UP))
    assert facts.unit_state == service.UnitState(
        state="RUNNING", phase="active", main_pid=7, uptime_s=60.0
    )
    assert (facts.health.status, facts.models) == (200, ["m"])


@pytest.mark.parametrize(
    ("answer", "phase", "state"),
    [
        (NobodyThere("supervisord.sock: Connection refused"), "inactive", "not running"),
        (CannotLook("supervisord.sock: Permission denied"), None, "Permission denied"),
        (RUNNING | {"statename": "BACKOFF", "spawnerr": "can't find"}, "inactive", "can't find"),
        (RUNNING | {"statename": "STARTING"}, "starting", "STARTING"),
    ],
)
def test_states_of_supervisor(host, answer, phase, state):
    facts = service.collect(host(files=FILES, rpcs={RPC: answer}))
    assert facts.unit_state.phase == phase
    assert state in facts.unit_state.state
    assert facts.health.error == "Connection refused"
    assert facts.models is None


SHOW = """LoadState=loaded
ActiveState={active}
SubState={sub}
Result={result}
MainPID=4242
InactiveExitTimestampMonotonic=39000000000
TimeoutStartUSec=10min 1s 500ms
"""


@pytest.mark.parametrize(
    ("active", "sub", "result", "phase"),
    [
        ("active", "running", "success", "active"),
        ("activating", "start", "success", "starting"),
        ("activating", "auto-restart", "exit-code", "inactive"),
        ("failed", "failed", "exit-code", "inactive"),
    ],
)
def test_states_of_systemd(host, active, sub, result, phase):
    manifest = json.dumps(MANIFEST | {"manager": "systemd", "unit": "v.service"})
    show = f"systemctl --system show -p {service._PROPERTIES} v.service"
    probe = host(
        files=FILES | {f"{RELEASE}/release.json": manifest},
        commands={show: SHOW.format(active=active, sub=sub, result=result)},
    )
    state = service.collect(probe).unit_state
    assert (state.phase, state.main_pid, state.start_timeout_s) == (phase, 4242, 601.5)
    assert state.uptime_s == (None if phase == "inactive" else 1000.0)


def test_a_unit_that_does_not_exist_or_a_manager_that_does_not_answer(host):
    assert service.parse_show("LoadState=not-found\n", 1.0).phase == "inactive"
    assert service.parse_timespan("infinity") is None
    masked = service.parse_show("LoadState=masked\nActiveState=inactive\nSubState=dead\n", 1.0)
    assert masked.state == "inactive (dead, masked)"
    manifest = json.dumps(MANIFEST | {"manager": "systemd-user"})
    state = service.collect(host(files=FILES | {f"{RELEASE}/release.json": manifest})).unit_state
    assert (state.phase, state.state) == (None, "systemctl: No such file or directory")


def test_the_real_probe_asks_over_http_and_a_unix_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503 if self.path == "/health" else 200)
            self.end_headers()
            self.wfile.write(b"body")
            while self.path == "/drip":
                time.sleep(0.1)
                self.wfile.write(b".")

        def log_message(self, *_args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert Probe().get(f"{url}/health", 5)[:2] == (503, "")
        assert Probe().get(url, 5)[:2] == (200, "body")
        assert Probe().get(f"{url}/drip", 0.5).error == "timed out"
        server.shutdown()
    assert "refused" in Probe().get(url, 5).error

    class RpcHandler(xmlrpc.server.SimpleXMLRPCRequestHandler):
        disable_nagle_algorithm = False

        def address_string(self):
            return "unix"

    class Server(socketserver.UnixStreamServer, xmlrpc.server.SimpleXMLRPCDispatcher):
        logRequests = False  # noqa: N815 - the base class's name

        def __init__(self, path):
            xmlrpc.server.SimpleXMLRPCDispatcher.__init__(self)
            socketserver.UnixStreamServer.__init__(self, path, RpcHandler)

    path = str(tmp_path / "s")
    with Server(path) as server:
        server.register_function(lambda name: {"statename": "RUNNING", "name": name}, "a.b")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert Probe().rpc(path, "a.b", "x") == {"statename": "RUNNING", "name": "x"}
        with pytest.raises(CannotLook):
            Probe().rpc(path, "no.such")
        server.shutdown()
    with pytest.raises(NobodyThere):
        Probe().rpc(path, "a.b", "x")


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <gpu id="00000000:1A:00.0">
    <uuid>GPU-1</uuid>
    <driver_model><current_dm>N/A</current_dm><pending_dm>N/A</pending_dm></driver_model>
  </gpu>
</nvidia_smi_log>
"""


def test_nvidia_smi(host):
    facts = smi.collect(host(commands={"nvidia-smi -q -x": XML}))
    assert (facts.exit_code, facts.output) == (0, "")
    assert facts.gpus == [smi.SmiGpu(subject="GPU-1")]
    said = "NVIDIA-SMI has failed because it couldn't\ncommunicate with the NVIDIA driver.\n"
    facts = smi.collect(host(commands={"nvidia-smi -q -x": (9, said, "")}))
    assert (facts.exit_code, facts.gpus, facts.timed_out) == (9, [], False)
    assert facts.output.endswith("couldn't communicate with the NVIDIA driver.")
    assert smi.collect(host()) == smi.SmiFacts()


def test_a_command_that_hangs_is_cut_off(tmp_path):
    # with a child that keeps the pipe open, and deaf to polite signals
    done = Probe().run("sh", "-c", "trap '' TERM; sleep 30 & sleep 30", limit=0.1)
    assert done.exit_code is None
    assert done.seconds < 5
    assert done.complaint.startswith("no answer within")
    assert Probe().run("false", limit=5).complaint == "exit code 1"
    with pytest.raises(CannotLook, match="no-such-command"):
        Probe().run("no-such-command", limit=1)


def test_a_host_that_never_had_a_release_differs_from_one_that_lost_it(host):
    with pytest.raises(NotHere, match="no release is installed"):
        release.collect(host())
    for files, env in (({"/opt/volta/releases": None}, {}), ({}, {"VOLTA_ROOT": "/data/volta"})):
        with pytest.raises(CannotLook, match="no release is installed") as lost:
            release.collect(host(files=files, env=env))
        assert not isinstance(lost.value, NotHere)
