"""The `kernel_log` section: the kernel's messages since boot, from wherever they can be read."""

import re
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from volta_doctor.probe import CannotLook, Probe

_JOURNAL_S = 6.0
_DMESG_S = 5.0
LIMIT_S = _JOURNAL_S + _DMESG_S + 3
MAX_LINES = 20_000
_MAX_OF_A_KIND = 1_000
_MAX_TEXT = 2_000  # characters; the kernel's own records are shorter
# An oldest line later than this means that the ring buffer has overwritten the boot.
BOOT_LINES_S = 60.0

# What checks look for. A storm of anything else must not push these out, nor one kind another.
_OF_INTEREST = re.compile(
    r"NVRM: (?:Xid \([^)]*\): \d+|.{0,20})"
    r"|fallen off the bus"
    r"|AER: [A-Z]\w+ \w+"
    r"|PCIe Bus Error: severity=\w+"
    r"|\baer_\w+: "
    r"|oom-kill:|[Kk]illed process|Kill process"
    r"|blocked for more than"
    r"|[Kk]ey was rejected"
)
_TIMED = re.compile(r"\[\s*(\d+\.\d+)\] (?:\S+ kernel: )?(.*)")
_ESCAPED = re.compile(r"\s*\\x0a\s*")  # /dev/kmsg writes a line feed inside a message so


class LogLine(msgspec.Struct, frozen=True):
    """One message; `time` is in seconds since boot."""

    time: float
    text: str


class KernelLogFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The messages, oldest first; `source` is where they came from.

    The newest 20 000 are kept, and from further back those that a check may ask for; `left_out`
    counts the others. `since` is how far back the look went, in seconds after boot: the log may
    begin later than the boot, or be longer than there was time for. None stands for the first line.
    """

    source: str
    lines: list[LogLine]
    left_out: int = 0
    since: float | None = None

    @property
    def begins(self) -> float:
        """The time of the oldest line that was looked at."""
        return self.lines[0].time if self.since is None else self.since

    def numbered(self) -> list[tuple[int | None, LogLine]]:
        """Return the lines with their numbers from 1, None where lines before them are missing."""
        return [(None if self.left_out else n, line) for n, line in enumerate(self.lines, 1)]

    def matching(self, pattern: str) -> list[tuple[int | None, LogLine]]:
        """Return the lines that match, numbered."""
        regex = re.compile(pattern)
        return [(n, line) for n, line in self.numbered() if regex.search(line.text)]


class _Sieve:
    """Takes lines in either order and keeps what `KernelLogFacts` says."""

    def __init__(self, newest_first: bool = False) -> None:
        self.newest_first = newest_first
        self.recent: deque[LogLine] = deque()
        self.older: list[LogLine] = []
        self.kinds: Counter[str] = Counter()
        self.seen = 0
        self.since = float("inf")

    def add(self, line: LogLine) -> None:
        self.seen += 1
        self.since = min(self.since, line.time)
        if self.newest_first and len(self.recent) == MAX_LINES:
            self._consider(line)
            return
        self.recent.append(line)
        if len(self.recent) > MAX_LINES:
            self._consider(self.recent.popleft())

    def facts(self, source: str) -> KernelLogFacts | None:
        """Return what was kept, None where there was no line."""
        if not self.seen:
            return None
        lines = [*self.recent, *self.older] if self.newest_first else [*self.older, *self.recent]
        if self.newest_first:
            lines.reverse()
        since = None if self.since == lines[0].time else self.since
        left_out = self.seen - len(lines)
        return KernelLogFacts(source=source, lines=lines, left_out=left_out, since=since)

    def _consider(self, line: LogLine) -> None:
        found = _OF_INTEREST.search(line.text)
        if found and len(self.older) < MAX_LINES and self.kinds[found[0]] < _MAX_OF_A_KIND:
            self.kinds[found[0]] += 1
            self.older.append(line)


class TimedLines:
    """Parses `[   12.345678] text`: dmesg, and journalctl -o short-monotonic with host and tag.

    A line without a time goes on with the message above it: some of the driver's take three.
    """

    def __init__(self, take: Callable[[LogLine], None]) -> None:
        self.take = take
        self.time: float | None = None
        self.parts: list[str] = []

    def add(self, text: str) -> None:
        """Take the next line of text."""
        if match := _TIMED.match(text):
            self.end()
            self.time, self.parts = float(match[1]), [match[2]]
        elif len(self.parts) < 20:
            self.parts.append(text.strip())

    def end(self) -> None:
        """Hand on the last message."""
        if self.time is not None:
            self.take(LogLine(self.time, " ".join(self.parts)[:_MAX_TEXT]))
        self.time, self.parts = None, []


def parse_record(record: str) -> LogLine | None:
    """Parse a record of /dev/kmsg: `priority,sequence,microseconds,flags;text`, then key=value."""
    prefix, semicolon, rest = record.partition(";")
    fields = prefix.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isdigit():
        return None
    text = _ESCAPED.sub(" ", rest.split("\n", 1)[0])
    return LogLine(int(fields[2]) / 1e6, text[:_MAX_TEXT])


def from_kmsg(probe: Probe) -> _Sieve:
    """Read the ring buffer itself; quick, but busy hosts overwrite its beginning."""
    sieve = _Sieve()
    for record in probe.records("/dev/kmsg"):
        if line := parse_record(record):
            sieve.add(line)
    return sieve


def from_journal(probe: Probe) -> _Sieve:
    """Read the journal of this boot, which keeps what the ring buffer has overwritten.

    It comes newest first: where it is longer than there is time for, the oldest part is missing.
    """
    sieve = _Sieve(newest_first=True)
    lines = TimedLines(sieve.add)
    argv = ["journalctl", "-k", "-b", "-q", "-r", "--no-pager", "-o", "short-monotonic"]
    probe.run(*argv, limit=_JOURNAL_S, take=lines.add)
    lines.end()
    if not sieve.seen:
        raise CannotLook("journalctl -k -b shows nothing to this user")
    return sieve


def from_dmesg(probe: Probe) -> _Sieve:
    """Read the ring buffer through the system call, where /dev/kmsg is missing (containers)."""
    sieve = _Sieve()
    lines = TimedLines(sieve.add)
    done = probe.run("dmesg", limit=_DMESG_S, take=lines.add)
    if done.exit_code != 0:
        raise CannotLook(f"dmesg: {done.complaint.removeprefix('dmesg: ')}")
    lines.end()
    return sieve


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
            log = read(probe).facts(source)
        except CannotLook as reason:
            reasons.append(str(reason))
            continue
        if log and (best is None or log.begins < best.begins):
            best = log
        if best and best.begins <= BOOT_LINES_S:
            return best
    if best is None:
        raise CannotLook(
            f"the kernel log cannot be read ({'; '.join(reasons)}): run again with sudo, or add the"
            " user to the group systemd-journal"
        )
    return best
