"""`volta-doctor why` from outside: whatever it is given, a right answer or a clear error."""

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
QUIET = "".join(f"[  {n}.000000] usb 1-1: new high-speed USB device\n" for n in range(50))
FATAL = "[  900.000000] NVRM: Xid (PCI:0000:1a:00): 62, pid=2222, 2e4e(2d5c) 00000000 00000000\n"
LOG = (QUIET + FATAL + QUIET).encode()
ARGV = [sys.executable, "-m", "volta_doctor", "why"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(*args: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*ARGV, *args], cwd=tmp_path, capture_output=True, text=True, check=False, **options
        )

    return start


def first(done: "subprocess.CompletedProcess[str]") -> tuple[str, int]:
    """Return the id and the line of the first finding."""
    finding = json.loads(done.stdout)["findings"][0]
    return finding["id"], finding["evidence"][0]["line"]


@pytest.mark.parametrize(
    "data",
    [
        LOG.replace(b"\n", b"\r\n"),
        LOG.decode().encode("utf-16"),
        LOG.decode().encode("utf-16-le"),
        LOG.decode().encode("utf-16-be"),
        b"\0" * 9_000 + LOG,
        LOG.replace(b"[  900.", b"\0" * 300_000 + b"[  900."),
        b"\x0c\x0b\x1c\xe2\x80\xa8\xc2\x85" + LOG,
        b"step 1\r" * 9_000 + LOG,
        LOG.replace(b"[  900.", b"Zm9v" * 2_000_000 + b" [  900."),
        LOG[:-9] + b"\xb4\xed\xce\xf3\xff",
        gzip.compress(LOG[:2_000]) + gzip.compress(LOG[2_000:]),
        gzip.compress(LOG)[:-8],
        gzip.compress(LOG) + b"garbage",
        bz2.compress(LOG),
        lzma.compress(LOG),
    ],
    ids=[
        *("CRLF", "UTF-16", "UTF-16LE", "UTF-16BE", "NULs first", "NULs within", "line ends"),
        *("progress bar", "a line of 8 MB", "GBK", "two gzips", "half a gzip", "more than a gzip"),
        *("bz2", "xz"),
    ],
)
def test_the_fault_and_its_line_are_found(data: bytes, run: Run, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    assert first(run("log", "--format", "json")) == ("xid-fatal", 51)


@pytest.mark.parametrize(
    "storm", ["NVRM: Xid (PCI:0000:{gpu:02x}:00): 31, pid={n}, Ch", "NVRM: {n}"]
)
def test_one_line_in_the_middle_of_a_storm(storm: str, run: Run, tmp_path: Path) -> None:
    lines = [f"[{n}.000000] {storm.format(gpu=n % 8, n=n)}\n" for n in range(1_000, 90_000)]
    (tmp_path / "log").write_text("".join([*lines, FATAL, *lines]))
    assert first(run("log", "--format", "json")) == ("xid-fatal", 89_001)


def test_a_bug_report_of_many_megabytes(run: Run, tmp_path: Path) -> None:
    noise = "".join(f"line {n} of some other section of the report\n" for n in range(400_000))
    lspci = "1a:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100] [10de:1db1]\n"
    report = noise + lspci + noise + FATAL + noise
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(report.encode(), 1))
    found = first(run("nvidia-bug-report.log.gz", "--format", "json"))
    assert found == ("xid-fatal", 800_002)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_bomb_is_no_text(pack: Callable[[bytes], bytes], run: Run, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(pack(bytes(100 << 20)))
    done = run("bomb")
    assert done.returncode == 3
    assert "no text" in done.stdout


@pytest.mark.parametrize("source", ["/dev/zero", "/dev/urandom"])
def test_what_has_no_end(source: str, run: Run) -> None:
    done = run(source, timeout=20)
    assert done.returncode == 3
    assert "no text" in done.stdout


def test_control_c_while_it_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in ("pipe", "-"):
        process = subprocess.Popen(
            [*ARGV, source], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_what_cannot_be_read_is_told_beside_the_answer(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG)
    done = run("log", "nowhere", ".", "log")
    assert done.returncode == 2
    assert "once" in done.stdout
    assert "nowhere: No such file or directory: the other files were judged" in " ".join(
        done.stdout.split()
    )
    alone = run("nowhere", ".")
    assert alone.returncode == 64
    assert "nowhere: No such file" in alone.stderr
    assert "./*.log" in alone.stderr


def test_stdin_is_read_once_and_may_be_closed(run: Run) -> None:
    assert run("-", "-", input=LOG.decode()).returncode == 2
    closed = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *ARGV], capture_output=True, text=True)
    assert closed.returncode == 3
    assert "stdin: it is empty" in closed.stdout


@pytest.mark.parametrize("name", ["-", "a\x1b[31m\nb c", "\u663e\u5361", "-v"])
def test_names_of_any_kind(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(LOG)
    done = run("--", f"./{name}")
    assert done.returncode == 2
    assert "\x1b" not in done.stdout


def test_where_the_answer_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG)
    with Path("/dev/full").open("w") as full:
        argv = [*ARGV, str(tmp_path / "log")]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "No space left" in done.stderr) == (3, True)
    away = run("log", "-o", "nowhere/answer.json")
    assert (away.returncode, "nowhere/answer.json: No such file" in away.stderr) == (64, True)


@pytest.mark.parametrize("environment", [{"LC_ALL": "POSIX", "PYTHONUTF8": "0"}, {"COLUMNS": "9"}])
def test_poor_terminals(environment: dict[str, str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes("\u663e\u5361\n".encode() + LOG)
    done = run("log", env=environment)  # no HOME either
    assert done.returncode == 2
    assert done.stderr == ""


def test_without_re2_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['re2'] = None; from volta_doctor.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "why", "x"], capture_output=True, text=True)
    assert done.returncode == 64
    assert done.stderr.startswith("Error: why needs google-re2")
    assert done.stderr.count("\n") == 1
