"""The Ansible modules' judgement, on made-up trees and real sockets."""

import contextlib
import importlib
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from volta_doctor.catalog import compat

# Importing Ansible replaces sys.intern, which torch.compile does not bear in the same process;
# the functions tested here need nothing of it. The plays in tests/hosts run the modules whole.
names = ("ansible", "ansible.module_utils", "ansible.module_utils.basic")
with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in names}):
    facts = importlib.import_module("volta_provision.modules.volta_facts")
    preflight = importlib.import_module("volta_provision.modules.volta_preflight")


def pci(root, address, vendor, device, class_):
    path = root / address
    path.mkdir()
    for name, value in {"vendor": vendor, "device": device, "class": class_}.items():
        (path / name).write_text(value + "\n")


def test_nvidia_devices_are_cards_not_switches(tmp_path):
    pci(tmp_path, "0000:3b:00.0", "0x10de", "0x1db1", "0x030200")
    pci(tmp_path, "0000:5e:00.0", "0x10de", "0x1ac2", "0x068000")  # an NVSwitch
    pci(tmp_path, "0000:00:02.0", "0x8086", "0x1db1", "0x030000")
    assert facts.nvidia_devices(tmp_path) == [("0000:3b:00.0", "0x1db1")]


@pytest.mark.parametrize(
    ("device", "volta"), [("0x1db1", True), ("0x1df6", True), ("0x20b0", False), ("0x1cb3", False)]
)
def test_volta_is_told_by_the_catalogue(device, volta):
    table = compat().volta
    devices = [table.first_device_id, table.last_device_id]
    assert facts.has_volta([("0000:3b:00.0", device)], devices) == volta


HOLD_A_PORT = """
import socket, time
holder = socket.create_server(("127.0.0.1", 0))
print(holder.getsockname()[1], flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def port_holder(*arguments):
    """A process with the given arguments that listens on a port; yields (pid, port)."""
    command = [sys.executable, "-c", HOLD_A_PORT, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            yield holder.pid, int(holder.stdout.readline())
        finally:
            holder.kill()


def test_a_taken_port_names_its_process(tmp_path):
    with port_holder() as (pid, port):
        message = preflight.port_problem("127.0.0.1", port, tmp_path)
    assert f"port {port} on 127.0.0.1 is in use by pid {pid}" in message
    assert "serve.port" in message


def test_our_own_server_may_hold_the_port(tmp_path):
    with port_holder(f"{tmp_path}/current/venv/bin/volta-serve") as (_pid, port):
        assert preflight.port_problem("127.0.0.1", port, tmp_path) is None


def test_an_address_of_another_host_is_not_called_taken(tmp_path):
    message = preflight.port_problem("192.0.2.1", 8000, tmp_path)
    assert "192.0.2.1 is no address that a server on this host can bind" in message
    assert "serve.host" in message
    assert "in use" not in message


def test_a_port_kept_for_root_is_refused_for_root_too(tmp_path):
    message = preflight.port_problem("127.0.0.1", 80, tmp_path)
    assert "serve.port in stack.yaml to 1024 or more" in message


def test_a_free_port_is_no_problem(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert preflight.port_problem("127.0.0.1", port, tmp_path) is None


def test_a_service_stays_with_its_manager(tmp_path):
    root, unit, run = (tmp_path / name for name in ("volta", "volta-serve.service", "run"))
    assert facts.service_manager(0, root, unit, run) == ("supervisor", True)
    (run / "systemd/system").mkdir(parents=True)
    assert facts.service_manager(0, root, unit, run) == ("systemd", True)
    assert facts.service_manager(1000, root, unit, run) == ("supervisor", True)  # not logged in
    (run / "user/1000/systemd/private").mkdir(parents=True)
    assert facts.service_manager(1000, root, unit, run) == ("systemd-user", True)
    (root / "service").mkdir(parents=True)
    (root / "service/supervisord.conf").touch()
    assert facts.service_manager(1000, root, unit, run) == ("supervisor", True)
    unit.touch()
    assert facts.service_manager(1001, root, unit, run) == ("systemd-user", False)


def test_the_root_is_where_the_unit_runs_from(tmp_path):
    unit = tmp_path / "volta-serve.service"
    assert facts.installed_root(unit) is None
    unit.write_text("[Service]\nEnvironmentFile=/data/volta/current/serve.env\n")
    assert facts.installed_root(unit) == Path("/data/volta")


@pytest.mark.parametrize(
    ("free", "need", "problem"), [(2.9, 3, True), (3.0, 3, False), (0, 0, False)]
)
def test_a_small_disk_is_named_with_both_figures(tmp_path, free, need, problem):
    message = preflight.disk_problem(tmp_path / "opt/volta", free, need)
    assert bool(message) == problem
    if problem:
        assert f"{tmp_path} has 2.9 GiB free, the release needs 3.0 GiB" in message


def test_a_class_of_hosts_is_what_its_binaries_depend_on():
    python = "cp{}{}".format(*sys.version_info[:2])
    debian = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'
    assert facts.host_class(debian, "x86_64") == f"debian-12-x86_64-{python}"
    rocky = 'ID="rocky"\nID_LIKE="rhel centos"\nVERSION_ID="9.4"\n'
    assert facts.host_class(rocky, "ppc64le") == f"rocky-9.4-ppc64le-{python}"
