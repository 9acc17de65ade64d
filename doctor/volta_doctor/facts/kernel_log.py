"""The `kernel_log` section: the kernel's messages since boot, from wherever they can be read."""

import re

import msgspec

from volta_doctor.probe import CannotLook, Probe

_COMMAND_S = 5.0
MAX_LINES = 20_000
# An oldest line later than this means that the ring buffer has overwritten the boot.
BOOT_LINES_S = 60.0


class LogLine(msgspec.Struct, frozen=True):
    """One message; `time` is in seconds since boot."""

    time: float
    text: str


class KernelLogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The messages, oldest first, at most the newest 20 000; `source` is where they came from."""

    source: str
    lines: list[LogLine]

    def matching(self, pattern: str) -> list[tuple[int, LogLine]]:
        """Return the lines that match, each with its number from 1."""
        regex = re.compile(pattern)
        return [(n, line) for n, line in enumerate(self.lines, 1) if regex.search(line.text)]


def parse_kmsg(records: list[str]) -> list[LogLine]:
    """Parse records of /dev/kmsg: `priority,sequence,microseconds,flags;text`, then key=value."""
    lines = []
    for record in records:
        prefix, semicolon, rest = record.partition(";")
        fields = prefix.split(",")
        if semicolon and len(fields) >= 3 and fields[2].isdigit():
            lines.append(LogLine(int(fields[2]) / 1e6, rest.split("\n", 1)[0]))
    return lines


def parse_timed(text: str) -> list[LogLine]:
    """Parse `[   12.345678] text`: dmesg, and journalctl -o short-monotonic with host and tag."""
    pattern = re.compile(r"^\[\s*(\d+\.\d+)\] (?:\S+ kernel: )?(.*)$", re.MULTILINE)
    return [LogLine(float(time), line) for time, line in pattern.findall(text)]


def from_kmsg(probe: Probe) -> list[LogLine]:
    """Read the ring buffer itself; quick, but busy hosts overwrite its beginning."""
    return parse_kmsg(probe.records("/dev/kmsg"))


def from_journal(probe: Probe) -> list[LogLine]:
    """Read the journal of this boot, which keeps what the ring buffer has overwritten."""
    done = probe.run(
        "journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", limit=_COMMAND_S
    )
    lines = parse_timed(done.stdout)
    if not lines:
        raise CannotLook("journalctl -k -b shows nothing to this user")
    return lines


def from_dmesg(probe: Probe) -> list[LogLine]:
    """Read the ring buffer through the system call, where /dev/kmsg is missing (containers)."""
    done = probe.run("dmesg", limit=_COMMAND_S)
    if done.exit_code != 0:
        raise CannotLook(f"dmesg: {done.complaint.removeprefix('dmesg: ')}")
    return parse_timed(done.stdout)


_SOURCES = (
    ("/dev/kmsg", from_kmsg),
    ("journalctl -k -b", from_journal),
    ("dmesg", from_dmesg),
)


def collect(probe: Probe) -> KernelLogFacts:
    """Take the first source that reaches back to the boot, else the one that reaches furthest."""
    reasons: list[str] = []
    best: KernelLogFacts | None = None
    for source, read in _SOURCES:
        try:
            lines = read(probe)
        except CannotLook as reason:
            reasons.append(str(reason))
            continue
        if lines and (best is None or lines[0].time < best.lines[0].time):
            best = KernelLogFacts(source=source, lines=lines[-MAX_LINES:])
        if best and best.lines[0].time <= BOOT_LINES_S:
            return best
    if best is None:
        raise CannotLook(
            f"the kernel log cannot be read ({'; '.join(reasons)}): run again with sudo, or add the"
            " user to the group systemd-journal"
        )
    return best
