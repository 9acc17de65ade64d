"""What the kernel log tells: Xids, PCIe errors, kills for want of memory. Pure parsing."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.facts.kernel_log import KernelLogFacts
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence

FALLEN = 79  # the Xid of a GPU that has fallen off the bus

_BUS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python, GPU has fallen off the bus.
# Older drivers leave out PCI:, the process, or both; an unknown process is '<unknown>'.
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?({_BUS})[^)]*\): (\d+)"
    r"(?:, pid='?(?:(\d+)|<unknown>)'?)?(?:, name=(?:<unknown>|([^,]+)))?"
)
# NVRM: GPU 0000:1a:00.0: GPU has fallen off the bus.
# NVRM: The NVIDIA GPU 0000:1a:00.0 (PCI ID: 10de:1db5) installed in this system has fallen off …
_FALLEN = re.compile(rf"NVRM: .*?\b(?:PCI:)?({_BUS})\b.*fallen off the bus", re.DOTALL)
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?({_BUS}): (GPU-[0-9a-f-]{{36}})")

# pcieport 0000:00:02.0: AER: Multiple Corrected error received: 0000:1a:00.0
# "id=00e0" before 4.18, "error message received from" since 6.8, which writes Correctable.
_RECEIVED = re.compile(
    rf"({_BUS}): AER: (?:Multiple )?(Uncorrect|Correct)\w+.*? error (?:message )?received"
    rf"(?:: id=([0-9a-fA-F]{{4}})|(?:: | from )({_BUS}))?"
)
# nvidia 0000:1a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
_BUS_ERROR = re.compile(rf"({_BUS}): (?:AER: )?PCIe Bus Error: severity=(Uncorrect|Correct)")
# What firmware that handles the errors itself reports: every one has a status, only an
# uncorrected one has a severity as well.
_FIRMWARE = re.compile(rf"({_BUS}): (?:AER: )?aer_(?:(uncor_severity)|(?:cor_)?status): 0x")

# Out of memory: Killed process 1234 (python3) total-vm:98012345kB, anon-rss:52428800kB, …
_KILLED = re.compile(r"Kill(?:ed)? process (\d+) \((.*?)\)(?:[, ]|$)(?:.*?anon-rss:(\d+)kB)?")
# oom-kill:constraint=CONSTRAINT_MEMCG,…,task_memcg=/system.slice/x.service,task=python,pid=12,uid=0
_CHOSEN = re.compile(r"oom-kill:.*?task_memcg=([^,]*),task=.*?,pid=(\d+),uid=")
_SAME_S = 10.0  # between two lines that tell of one thing


class Event(NamedTuple):
    """One line that tells of something, `time` in seconds after boot, or into an excerpt."""

    evidence: Evidence
    time: float
    in_excerpt: bool = False

    @property
    def moment(self) -> str:
        """When it was, in words; empty where an excerpt does not tell."""
        return "" if self.in_excerpt else f"{self.time:.0f} s after boot"


class Xid(NamedTuple):
    """An Xid, or a line that says the same as one; `name` and `pid` where a process is named."""

    event: Event
    bus: str
    number: int
    pid: int | None = None
    name: str | None = None


class PcieError(NamedTuple):
    """A PCIe error of a device; `form` tells apart lines that may speak of the same one."""

    event: Event
    bus: str
    corrected: bool
    form: str


class Kill(NamedTuple):
    """A process that was killed for want of memory, in a cgroup or (None) on the whole host."""

    event: Event
    pid: int
    name: str
    rss_bytes: int | None
    limited: bool
    unit: str | None


def events(log: KernelLogFacts, *words: str) -> Iterator[Event]:
    """Yield the lines that hold one of the words."""
    for number, line in log.numbered():
        if any(word in line.text for word in words):
            yield Event(Evidence(log.source, line.text, number), line.time, log.excerpt)


def xids(log: KernelLogFacts) -> list[Xid]:
    """Return the Xids, oldest first.

    A line that a GPU has fallen off the bus counts as Xid 79, unless it only repeats one.
    """
    found: list[Xid] = []
    for event in events(log, "NVRM"):
        text = event.evidence.text
        if match := _XID.search(text):
            pid = int(match[3]) if match[3] else None
            found.append(Xid(event, bus_id(match[1]), int(match[2]), pid, match[4]))
        elif match := _FALLEN.search(text):
            fallen = Xid(event, bus_id(match[1]), FALLEN)
            if not any(_same(xid, fallen) for xid in found):
                found.append(fallen)
    return found


def _same(xid: Xid, fallen: Xid) -> bool:
    near = fallen.event.time - xid.event.time < _SAME_S
    return near and (xid.bus, xid.number) == (fallen.bus, fallen.number)


def uuids(log: KernelLogFacts) -> dict[str, str]:
    """Return the UUIDs that the driver prints beside an Xid, by bus id."""
    matches = (_UUID.search(line.text) for line in log.lines if "NVRM" in line.text)
    return {bus_id(match[1]): match[2] for match in matches if match}


def pcie_errors(log: KernelLogFacts) -> list[PcieError]:
    """Return the PCIe errors, oldest first."""
    found = []
    for event in events(log, " error ", " Error: ", "aer_"):
        text = event.evidence.text
        if match := _RECEIVED.search(text):
            source = match[4] or (_requester(match[1], match[3]) if match[3] else match[1])
            found.append(PcieError(event, bus_id(source), match[2] == "Correct", "received"))
        elif match := _BUS_ERROR.search(text):
            found.append(PcieError(event, bus_id(match[1]), match[2] == "Correct", "reported"))
        elif match := _FIRMWARE.search(text):
            found.append(PcieError(event, bus_id(match[1]), not match[2], "firmware"))
    return found


def kills(log: KernelLogFacts) -> list[Kill]:
    """Return the kills, oldest first; older kernels announce each with a line of its own."""
    found: list[Kill] = []
    units: dict[int, str | None] = {}
    for event in events(log, "oom-kill:", "ill process", "illed process"):
        text = event.evidence.text
        if chosen := _CHOSEN.search(text):
            unit = re.search(r"([^/]+\.service)(?:/|$)", chosen[1])
            units[int(chosen[2])] = unit[1] if unit else None
        elif killed := _KILLED.search(text):
            pid, rss = int(killed[1]), int(killed[3]) * 1024 if killed[3] else None
            limited = "cgroup out of memory" in text
            if found and found[-1].pid == pid and event.time - found[-1].event.time < _SAME_S:
                limited = limited or found.pop().limited
            found.append(Kill(event, pid, killed[2], rss, limited, units.get(pid)))
    return found


def _requester(port: str, requester: str) -> str:
    """Return the bus id of a 16-bit requester id in the domain of its port."""
    number = int(requester, 16)
    return f"{port.split(':')[0]}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"
