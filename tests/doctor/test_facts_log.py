"""The kernel log: of any size, and every wording of what it tells."""

import subprocess
import sys
import time

import pytest

from volta_doctor.facts import kernel_log
from volta_doctor.facts.kernel_log import KernelLogFacts, LogLine
from volta_doctor.facts.kernel_log.events import kills, pcie_errors, uuids, xids
from volta_doctor.probe import CannotLook

JOURNAL = "journalctl -k -b -q -r --no-pager -o short-monotonic"
XID = "NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def log(*texts, time=100.0):
    return KernelLogFacts(source="dmesg", lines=[LogLine(time, text) for text in texts])


def noise(count, begin=1):
    return [f"[{n:6}.500000] usb 1-1: new device number {n}" for n in range(begin, begin + count)]


@pytest.mark.parametrize(
    ("text", "bus", "number", "pid", "name"),
    [
        (XID, "0000:1a:00.0", 79, 1234, "python"),
        (f"NVRM: {XID}", "0000:1a:00.0", 79, 1234, "python"),
        (XID.replace("python", "VLLM::Worker_TP"), "0000:1a:00.0", 79, 1234, "VLLM::Worker_TP"),
        (
            "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen",
            "0000:a1:00.0",
            79,
            None,
            None,
        ),
        ("NVRM: Xid (0000:1a:00.0): 48, An uncorrectable", "0000:1a:00.0", 48, None, None),
        ("NVRM: Xid (PCI:00000000:1A:00.0): 13, pid=7", "0000:1a:00.0", 13, 7, None),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask", "0000:01:00.0", 31, None, None),
        ("NVRM: Xid (PCI:0000:b1:00 GPU-I:05): 13, pid=8, name=a", "0000:b1:00.0", 13, 8, "a"),
        ("NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.", "0000:a1:00.0", 79, None, None),
        ("NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "0000:01:00.0", 79, None, None),
    ],
)
def test_every_wording_of_an_xid(text, bus, number, pid, name):
    (xid,) = xids(log(text))
    assert (xid.bus, xid.number, xid.pid, xid.name) == (bus, number, pid, name)


def test_a_message_of_several_lines_is_one(host):
    dmesg = (
        "[    7.100000] NVRM: The NVIDIA GPU 0000:5d:00.0 (PCI ID: 10de:1db5)\n"
        "               NVRM: installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[    7.200000] nvidia: probe of 0000:5d:00.0 failed with error -1\n"
    )
    facts = kernel_log.collect(host(commands={"dmesg": dmesg}))
    assert [xid.bus for xid in xids(facts)] == ["0000:5d:00.0"]
    assert len(facts.lines) == 2
    kmsg = "4,9,7100000,-;NVRM: The NVIDIA GPU 0000:5d:00.0 (PCI ID: 10de:1db5)\\x0aNVRM: installed"
    kmsg += " in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.\n"
    facts = kernel_log.collect(host(files={"/dev/kmsg": kmsg}))
    assert [xid.bus for xid in xids(facts)] == ["0000:5d:00.0"]


def test_the_driver_names_the_uuid():
    uuid = "GPU-c4a80165-86e4-bfbb-ecfa-1d81a70b138a"
    assert uuids(log(f"NVRM: GPU at PCI:0000:01:00: {uuid}")) == {"0000:01:00.0": uuid}


@pytest.mark.parametrize(
    ("text", "bus", "corrected"),
    [
        ("pcieport 0000:00:1c.0: AER: Corrected error received: id=00e0", "0000:00:1c.0", True),
        ("pcieport 0001:00:1c.0: AER: Corrected error received: id=021b", "0001:02:03.3", True),
        ("pcieport 0000:00:02.0: AER: Corrected error received", "0000:00:02.0", True),
        (
            "pcieport 0000:00:1c.5: AER: Multiple Corrected error received: 0000:02:00.0",
            "0000:02:00.0",
            True,
        ),
        (
            "pcieport 0000:00:1d.0: AER: Multiple Correctable error message received from"
            " 0000:02:00.0",
            "0000:02:00.0",
            True,
        ),
        (
            "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:1a:00.0",
            "0000:1a:00.0",
            False,
        ),
        (
            "pcieport 0000:00:1c.0: AER: Multiple Uncorrectable (Non-Fatal) error message received"
            " from 0000:73:00.1",
            "0000:73:00.1",
            False,
        ),
        (
            "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer,"
            " id=00e0(Receiver ID)",
            "0000:00:1c.0",
            True,
        ),
        (
            "nvidia 0000:1a:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data"
            " Link Layer, (Receiver ID)",
            "0000:1a:00.0",
            False,
        ),
        (
            "nvidia 0000:1a:00.0: aer_cor_status: 0x00001000, aer_cor_mask: 0x00002000",
            "0000:1a:00.0",
            True,
        ),
        ("nvidia 0000:1a:00.0: AER: aer_uncor_severity: 0x00062010", "0000:1a:00.0", False),
    ],
)
def test_every_wording_of_a_pcie_error(text, bus, corrected):
    (error,) = pcie_errors(log(text))
    assert (error.bus, error.corrected) == (bus, corrected)


@pytest.mark.parametrize(
    "text",
    [
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
        "pcieport 0000:00:1c.5: AER: can't find device of ID00e5",
        "nvidia 0000:1a:00.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:00:1c.0:    [ 0] RxErr                  (First)",
    ],
)
def test_lines_of_aer_that_are_no_error(text):
    assert pcie_errors(log(text)) == []


def test_a_unit_is_named_before_the_kill():
    chosen = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x.service,mems_allowed=0-1,"
        "oom_memcg=/system.slice/x.service,task_memcg=/system.slice/x.service/a,task=python3,"
        "pid=12,uid=0"
    )
    killed = "Memory cgroup out of memory: Killed process 12 (python3) total-vm:1kB, anon-rss:2kB"
    (kill,) = kills(log(chosen, killed, "oom_reaper: reaped process 12 (python3)"))
    assert (kill.pid, kill.name, kill.limited) == (12, "python3", True)
    assert (kill.unit, kill.rss_bytes) == ("x.service", 2048)


@pytest.mark.parametrize("source", ["dmesg", "journalctl"])
def test_a_storm_pushes_out_nothing_that_a_check_asks_for(host, source):
    killed = "Out of memory: Killed process 12 (python3) total-vm:1kB, anon-rss:2kB"
    early = [f"[    0.000000] {XID}", f"[    0.100000] {killed}"]
    lines = [*early, *noise(kernel_log.MAX_LINES + 500)]
    if source == "journalctl":
        answers = {
            JOURNAL: "\n".join(line.replace("] ", "] gpu1 kernel: ") for line in lines[::-1])
        }
    else:
        answers = {"dmesg": "\n".join(lines)}
    facts = kernel_log.collect(host(commands=answers))
    assert [line.text for line in facts.lines[:2]] == [XID, killed]
    assert kernel_log.MAX_LINES <= len(facts.lines) - 2 < kernel_log.MAX_LINES + 50
    assert (facts.left_out + len(facts.lines), facts.begins) == (len(lines), 0.0)
    assert facts.lines[-1].text.endswith(f"number {kernel_log.MAX_LINES + 500}")
    ((number, _),) = facts.matching("Xid")
    assert number is None  # lines are missing, so it would be wrong


def test_a_storm_of_one_kind_pushes_out_no_other(host):
    aer = "nvidia 0000:1a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"
    storm = [f"[   10.{n:06}] {aer}" for n in range(5000)]
    lines = [*storm, f"[   20.000000] {XID}", *noise(kernel_log.MAX_LINES, begin=30)]
    facts = kernel_log.collect(host(commands={"dmesg": "\n".join(lines)}))
    assert len(xids(facts)) == 1
    assert 1000 <= len(pcie_errors(facts)) < 1050
    assert facts.left_out + len(facts.lines) == len(lines)


def test_a_journal_too_long_to_read_tells_how_far_back_it_was_read(host, monkeypatch):
    kmsg = "6,1,900000000,-;late\n"
    probe = host(files={"/dev/kmsg": kmsg}, commands={JOURNAL: "[  300.000000] h kernel: a\n"})
    facts = kernel_log.collect(probe)
    assert (facts.source, facts.begins) == ("journalctl -k -b", 300.0)


def test_half_a_gigabyte_of_log_takes_seconds_and_little_memory(tmp_path):
    tools = tmp_path / "usr/bin"
    tools.mkdir(parents=True)
    line = "[ 9000.000000] gpu1 kernel: usb 1-1: new high-speed USB device number 7 using xhci_hcd"
    (tools / "journalctl").write_text(
        f"#!/bin/sh\nPATH=/usr/bin\nyes '{line}' | head -c 500000000\n"
        f"echo\necho '[    1.000000] gpu1 kernel: {XID}'\n"
    )
    (tools / "journalctl").chmod(0o755)
    code = (
        "import re, sys; from volta_doctor.facts import kernel_log; kernel_log._JOURNAL_S = 60;"
        "from volta_doctor.probe import Probe; log = kernel_log.collect(Probe(sys.argv[1]));"
        "print(len(log.lines), log.left_out > 0, 'Xid' in log.lines[0].text,"
        # not ru_maxrss, which counts the process that started this one as well
        " re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    env = {"PATH": "/usr/bin"}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=env, stdout=subprocess.PIPE, check=True
    )
    lines, left_out, has_xid, kib = done.stdout.split()
    assert time.monotonic() - started < 20
    assert (left_out, has_xid) == (b"True", b"True")
    assert int(lines) < kernel_log.MAX_LINES + 2000
    assert int(kib) < 150 * 1024


def test_a_log_without_times_says_so(host):
    with pytest.raises(CannotLook, match="dmesg: no line with a time"):
        kernel_log.collect(host(commands={"dmesg": "usb 1-1: new device\n"}))


def test_an_endless_line_does_not_fill_memory(host):
    facts = kernel_log.collect(host(commands={"dmesg": "[    1.000000] " + "x" * 1_000_000}))
    assert len(facts.lines[0].text) == 2000
