"""watch: a block for each change, the marks, and a clean end."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from volta_doctor.cli import cli, looking
from volta_doctor.facts.model import Facts
from volta_doctor.judge import sections_of


@pytest.fixture
def watched(monkeypatch, snapshot_with):
    """Watch a host that is as the given changes say, one after the other; then comes Ctrl-C."""

    def run(*states, options=()):
        asked = []
        snapshots = [snapshot_with(state) for state in states]

        def taken(_scope, sections=None):
            asked.append(sections)
            if not snapshots:
                raise KeyboardInterrupt
            return snapshots.pop(0)

        monkeypatch.setattr(looking, "taken", taken)
        monkeypatch.setattr("time.sleep", lambda _: None)
        args = ["watch", "--select", "iommu,smi-rc", *options]
        done = CliRunner().invoke(cli, args, standalone_mode=False)
        assert done.exception is None, done.exception
        return done, asked

    return run


BAD = {"host": {"cmdline": "intel_iommu=on"}}


def test_a_block_for_each_change_and_the_last_exit_code(watched):
    done, _ = watched({}, {}, BAD, BAD, {})
    assert done.return_value == 0
    marks = [line for line in done.output.splitlines() if line.startswith(">")]
    assert [mark.split(":")[0] for mark in marks] == ["> iommu", "> iommu"]
    assert "ok -> warn" in marks[0]
    assert "warn -> ok" in marks[1]
    assert done.output.count("profile v100") == 3
    assert watched({}, BAD)[0].return_value == 1


def test_what_is_slow_is_read_once_a_minute(watched, monkeypatch, snapshot_with):
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    _, asked = watched({}, {}, {}, {})
    every = sections_of([])
    assert asked[0] is None
    assert asked[1] >= every
    assert None in asked[1:]


def test_sections_that_were_not_read_are_those_of_the_time_before(snapshot_with):
    from msgspec import structs

    from volta_doctor.cli.watch import _merged

    old, new = snapshot_with({}), snapshot_with(BAD)
    part = structs.replace(new, facts=Facts(host=new.facts.host))
    merged = _merged(old, part)
    assert merged.facts.host == new.facts.host
    assert merged.facts.nvml == old.facts.nvml


def start(repo, tmp_path, stdout):
    paths = {"PYTHONPATH": str(repo / "doctor"), "XDG_CONFIG_HOME": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-m", "volta_doctor", "watch", "-n", "1", "--select", "iommu"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **paths, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )


def test_ctrl_c_ends_it_cleanly(repo, tmp_path):
    process = start(repo, tmp_path, subprocess.PIPE)
    assert process.stdout.read(1)
    time.sleep(0.8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert err == b""
    assert process.returncode in (0, 1, 3)


def test_on_a_terminal_it_paints_and_gives_the_screen_back(repo, tmp_path):
    main, side = pty.openpty()
    process = start(repo, tmp_path, side)
    os.close(side)
    seen = b""
    deadline = time.monotonic() + 20
    while b"profile" not in seen and time.monotonic() < deadline:
        if select.select([main], [], [], 0.2)[0]:
            seen += os.read(main, 65536)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    while select.select([main], [], [], 0.2)[0]:
        try:
            seen += os.read(main, 65536)
        except OSError:
            break
    os.close(main)
    assert process.stderr.read() == b""
    process.stderr.close()
    assert seen.startswith(b"\x1b[?1049h")
    assert b"profile" in seen
    assert b"\x1b[?1049l" in seen


def test_a_reader_that_leaves_ends_it(repo, tmp_path):
    process = start(repo, tmp_path, subprocess.PIPE)
    process.stdout.close()
    assert process.wait(20) in (0, 1, 2, 3)
    assert process.stderr.read() == b""
    process.stderr.close()
