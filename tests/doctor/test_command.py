"""Commands that hang, print without end or leave children behind, and where they are looked for."""

import os
import time

import pytest

from volta_doctor.command import KEPT_BYTES
from volta_doctor.probe import CannotLook, Probe


def test_what_it_printed_before_it_was_cut_off_is_kept():
    done = Probe().run("sh", "-c", "echo before; echo why >&2; sleep 30", limit=0.3)
    assert (done.exit_code, done.stdout, done.stderr) == (None, "before\n", "why\n")


def test_of_output_without_end_the_last_part_is_kept():
    done = Probe().run("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo end", limit=20)
    assert done.truncated
    assert done.exit_code == 0
    assert KEPT_BYTES - 70_000 < len(done.stdout) <= KEPT_BYTES
    assert done.stdout.endswith("xend\n")
    assert not Probe().run("echo", "short", limit=5).truncated


def test_output_without_end_ends_at_the_limit():
    done = Probe().run("yes", limit=0.3)
    assert done.exit_code is None
    assert done.seconds < 3


def test_a_child_that_stays_and_holds_the_output_is_not_waited_for(tmp_path):
    started = time.monotonic()
    script = "setsid sleep 60 & echo $!; exit 3"
    done = Probe().run("sh", "-c", script, limit=30)
    os.kill(int(done.stdout), 9)
    assert done.exit_code == 3
    assert time.monotonic() - started < 5


def test_a_child_that_stays_and_prints_is_not_waited_for():
    done = Probe().run("sh", "-c", "setsid yes & echo $! >&2; exit 3", limit=30)
    os.kill(int(done.stderr), 9)
    assert done.exit_code == 3
    assert done.seconds < 5


def test_a_command_that_closes_its_output_and_stays_is_cut_off():
    done = Probe().run("sh", "-c", "exec >&- 2>&-; sleep 30", limit=0.3)
    assert done.exit_code is None
    assert done.seconds < 3


def test_a_host_that_is_a_directory_has_its_own_commands(tmp_path):
    tool = tmp_path / "usr/sbin/nvidia-smi"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho from the directory\n")
    tool.chmod(0o755)
    probe = Probe(env={"PATH": "/usr/bin", "VOLTA_DOCTOR_SYSROOT": str(tmp_path)})
    assert probe.which("nvidia-smi") == "/usr/sbin/nvidia-smi"
    assert probe.run("nvidia-smi", limit=5).stdout == "from the directory\n"
    with pytest.raises(CannotLook, match="ls: No such file or directory"):
        probe.run("ls", limit=5)


def test_one_find_that_hangs_holds_up_no_other():
    import threading

    probe, leave = Probe(), threading.Event()
    hung = threading.Thread(target=lambda: probe.once(lambda _: leave.wait(30)), daemon=True)
    hung.start()
    assert probe.once(lambda _: "quick") == "quick"
    leave.set()
