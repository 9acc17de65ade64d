"""Hosts in trouble: the doctor ends in seconds, and what it could not see it does not call ok."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

GPU_CHECKS = ("ecc-dbe-vol", "temp-gpu", "retired-total")
SECONDS = 25  # the longest limit of a collector, and a busy machine


def statuses(findings: dict, check_id: str) -> set[str]:
    return {finding["status"] for finding in findings[check_id]}


def test_where_nvml_crashes_nvidia_smi_tells_of_the_gpus(live_host):
    findings = live_host("ecc-dbe-vol", fault="crash").findings()
    assert statuses(findings, "ecc-dbe-vol") == {"fail", "ok"}
    assert statuses(findings, "nvl-count") == {"unknown"}  # nvidia-smi does not say
    (abi,) = findings["nvml-abi"]
    assert (abi["status"], abi["evidence"][0]["text"]) == (
        "warn",
        "nvml: the collector's process died of SIGSEGV",
    )


def cannot_tell(findings: dict, reason: str) -> None:
    """Neither NVML nor nvidia-smi, which ends with 9 here, tells of the GPUs."""
    for check_id in GPU_CHECKS:
        assert statuses(findings, check_id) == {"unknown"}
        assert reason in findings[check_id][0]["message"]
    assert statuses(findings, "smi-rc") == {"fail"}


def test_an_nvml_that_crashes(live_host):
    host = live_host("v100-sxm2-32gb-x2", fault="crash")
    host.command("nvidia-smi", "exit 9")
    cannot_tell(host.findings(), "process died of SIGSEGV")


@pytest.mark.slow
def test_an_nvml_that_hangs_holds_up_neither_the_doctor_nor_its_caller(live_host, tmp_path):
    # the collector's process is made to outlive SIGKILL, as one in the kernel's D state does
    host = live_host("v100-sxm2-32gb-x2", fault="hang")
    host.command("nvidia-smi", "exit 9")
    code = (
        "import os, sys\nos.kill = lambda pid, how: print(pid, file=open('left', 'a'))\n"
        "from volta_doctor.cli import main\n"
        "sys.argv = ['volta-doctor', 'check', '--format', 'json']\nmain()\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=host.env, cwd=tmp_path, capture_output=True, text=True
    )
    try:
        assert time.monotonic() - started < SECONDS
        cannot_tell(host.by_id(done.stdout), "nvml: no answer within 10 s")
    finally:
        for pid in (tmp_path / "left").read_text().split():
            os.kill(int(pid), 9)


@pytest.mark.slow
def test_a_kernel_log_without_end(live_host):
    host = live_host("v100-sxm2-32gb-x2")
    line = "[   12.345678] NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."
    for command in ("journalctl", "dmesg"):
        host.command(command, f"while :; do yes '{line}' | head -n 100000; done")
    started = time.monotonic()
    done = host.doctor("check", "--format", "json", before=["/usr/bin/time", "-v"])
    assert time.monotonic() - started < SECONDS
    assert int(re.search(r"Maximum resident set size .*: (\d+)", done.stderr)[1]) < 150 * 1024
    assert done.returncode in (2, 3)


def test_an_nvidia_smi_that_leaves_its_children_behind(live_host):
    host = live_host("v100-sxm2-32gb-x2")
    host.command("nvidia-smi", "setsid sleep 300 &\necho $! >$HOME/child\nexit 14")
    try:
        started = time.monotonic()
        findings = host.findings()
        assert time.monotonic() - started < SECONDS
        (code,) = findings["smi-rc"]
        assert (code["status"], code["message"][:20]) == ("fail", "nvidia-smi exits 14:")
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may die with its group before its setsid
            os.kill(int((host.root / "root/child").read_text()), 9)


@pytest.mark.slow
def test_an_nvidia_smi_that_hangs(live_host):
    host = live_host("v100-sxm2-32gb-x2")
    host.command("nvidia-smi", "trap '' TERM INT\nwhile :; do sleep 1; done")
    findings = host.findings()
    assert statuses(findings, "smi-hang") == {"fail"}
    assert findings["smi-rc"][0]["folded_under"] == "smi-hang"
    assert statuses(findings, "ecc-dbe-vol") == {"ok"}


def test_no_nvidia_smi(live_host):
    host = live_host("v100-sxm2-32gb-x2")
    (host.root / "usr/bin/nvidia-smi").unlink()
    findings = host.findings()
    assert statuses(findings, "smi-rc") == {"unknown"}
    assert "nvidia-smi is not installed" in findings["smi-rc"][0]["message"]
    assert statuses(findings, "ecc-dbe-vol") == {"ok"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_without_the_rights_of_root_and_a_home_to_write_in(live_host, tmp_path):
    host = live_host("v100-sxm2-32gb-x2")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    (host.root / "root").chmod(0o555)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    findings = host.findings(before=nobody)
    assert statuses(findings, "ecc-dbe-vol") == {"ok"}
    assert not list((host.root / "root").iterdir())


def test_a_home_that_is_read_only(live_host):
    host = live_host("v100-sxm2-32gb-x2", fault="")
    done = host.doctor("check", HOME="/proc/nowhere", XDG_STATE_HOME="/proc/nowhere")
    assert (done.stderr, "Traceback" in done.stdout) == ("", False)


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
    ],
)
def test_a_locale_that_is_not_utf_8(live_host, env):
    host = live_host("v100-sxm2-32gb-x2")
    host.command("dmesg", "printf '[    0.000000] caf\\303\\251 \\377 \\342\\234\\223\\n'")
    for args in (["check"], ["check", "-v"], ["check", "--format", "json"]):
        done = host.doctor(*args, **env)
        assert done.stderr == ""
        assert done.returncode in (0, 1, 2, 3)


@pytest.mark.parametrize("args", [["check"], ["check", "-v"]])
def test_a_terminal_forty_columns_wide(live_host, args):
    host = live_host("ecc-dbe-vol")
    parent, child = pty.openpty()
    env = {k: v for k, v in host.env.items() if k != "COLUMNS"} | {"TERM": "xterm"}
    subprocess.run(["stty", "cols", "40", "rows", "24"], stdin=child, check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "volta_doctor", *args], env=env, stdin=child, stdout=child
    )
    os.close(child)
    said = b""
    try:
        while chunk := os.read(parent, 65536):
            said += chunk
    except OSError:  # so a terminal says that its last process has left
        pass
    assert process.wait(timeout=10) == 2
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert "ecc-dbe-vol" in plain
    lines = [line for line in plain.replace("\r", "\n").split("\n") if " " in line.strip()]
    assert max(map(len, lines)) <= 40, max(lines, key=len)


@pytest.mark.parametrize("args", [["check"], ["check", "--format", "json"], ["list"]])
def test_a_closed_stdout_changes_no_verdict(live_host, args):
    host = live_host("ecc-dbe-vol")
    command = f'exec "{sys.executable}" -m volta_doctor {" ".join(args)} >&-'
    done = subprocess.run(["sh", "-c", command], env=host.env, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == (2 if args[0] == "check" else 0)


def test_no_proc(live_host):
    host = live_host("v100-sxm2-32gb-x2")
    for path in sorted((host.root / "proc").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (host.root / "proc").rmdir()
    findings = host.findings()
    assert statuses(findings, "ecc-dbe-vol") == {"ok"}
    assert statuses(findings, "driver-loaded") == {"unknown"}
    assert statuses(findings, "mps") == {"unknown"}


def test_nothing_at_all(live_host, tmp_path):
    host = live_host("v100-sxm2-32gb-x2")
    empty = Path(tmp_path / "empty")
    empty.mkdir()
    done = host.doctor("check", "--format", "json", VOLTA_DOCTOR_SYSROOT=str(empty))
    assert (done.returncode, done.stderr) == (3, "")
