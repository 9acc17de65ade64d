"""The Ansible modules' judgement, on made-up trees and real sockets."""

import contextlib
import socket
import subprocess
import sys

import pytest
from ansible_modules import load

preflight = load("volta_preflight")


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


@pytest.mark.parametrize(
    ("free", "need", "problem"), [(2.9, 3, True), (3.0, 3, False), (0, 0, False)]
)
def test_a_small_disk_is_named_with_both_figures(tmp_path, free, need, problem):
    needs = [preflight.Need(tmp_path / "opt/volta", need, preflight.RELEASE)]
    messages = preflight.space_problems(needs, lambda _path: (1, free))
    assert len(messages) == problem
    if problem:
        assert f"{tmp_path} has 2.9 GiB free, and the release needs 3 GiB at" in messages[0]
        assert "set preflight_root" in messages[0]


def test_what_lies_on_one_disk_is_added_up(tmp_path):
    for name in ("usr", "boot"):
        (tmp_path / name).mkdir()
    needs = [
        preflight.Need(tmp_path / "usr/lib", 1, "the driver"),
        preflight.Need(tmp_path / "boot", 0.15, "an initramfs"),
        preflight.Need(tmp_path / "opt", 2, preflight.RELEASE),
    ]

    def disk(path):
        return (2, 0.05) if path.name == "boot" else (1, 2.5)

    messages = preflight.space_problems(needs, disk)
    assert len(messages) == 2
    assert "the driver needs 1 GiB" in messages[0]
    assert "the release needs 2 GiB" in messages[0]
    assert "has 0.05 GiB free, and an initramfs needs 0.15 GiB" in messages[1]
    assert "preflight_root" not in messages[1]


def test_several_problems_are_one_message():
    assert preflight.message(["a"]) == "a"
    assert preflight.message(["a", "b"]).splitlines()[1:] == ["1. a.", "2. b."]
