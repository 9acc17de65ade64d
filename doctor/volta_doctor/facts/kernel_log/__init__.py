"""The `kernel_log` section: the kernel's messages since boot, from wherever they can be read."""

import re
from collections import Counter, deque

import msgspec

from volta_doctor.probe import CannotLook, Probe

_JOURNAL_S = 6.0
_DMESG_S = 5.0
LIMIT_S = _JOURNAL_S + _DMESG_S + 3
MAX_LINES = 20_000
_MAX_OF_A_KIND = 1_000
_MAX_TEXT = 2_000  # characters; the kernel's own records are shorter
_MAX_REST = 100_000
# An oldest line later than this means that the ring buffer has overwritten the boot.
BOOT_LINES_S = 60.0

# What checks look for. A storm of anything else must not push these out, nor one kind another.
_OF_INTEREST = re.compile(
    r"NVRM: (?:Xid \([^)]*\): \d+|.{0,20})"
    r"|fallen off the bus"
    r"|\bSXid\b"
    r"|AER: [A-Z]\w+ \w+"
    r"|PCIe Bus Error: severity=\w+"
    r"|\baer_\w+: "
    r"|oom-kill:|[Kk]illed process|Kill process"
    r"|blocked for more than"
    r"|[Kk]ey was rejected"
)
# One of these is in each of them: most of a storm can be passed over without a closer look.
_WORDS = (
    "NVRM",
    "fallen off",
    "SXid",
    "AER",
    "PCIe Bus Error",
    "aer_",
    "oom-kill",
    "illed process",
    "Kill process",
    "blocked for",
    "was rejected",
)
_TIMED = re.compile(r"\[\s*(\d+\.\d+)\] (?:\S+ kernel: )?(.*)")
_ESCAPED = re.compile(r"\s*\\x0a\s*")  # /dev/kmsg writes a line feed inside a message so


class LogLine(msgspec.Struct, frozen=True):
    """One message; `time` is in seconds since boot."""

    time: float
    text: str


class KernelLogFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The messages, oldest first; `source` is where they came from.

    The newest 20 000 and a few are kept, and from further back those that a check may ask for;
    `left_out` counts the others. `since` is how far back the look went, in seconds after boot: the
    log may begin later than the boot, or be longer than there was time for. None stands for the
    first line. An `excerpt` holds what somebody picked out, its times begin with its first line.
    """

    source: str
    lines: list[LogLine]
    excerpt: bool = False
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


def parse_lines(text: str) -> list[LogLine]:
    """Parse `[   12.345678] text`: dmesg, and journalctl -o short-monotonic with host and tag.

    A line without a time goes on with the message above it: some of the driver's take three.
    """
    found: list[tuple[float, list[str]]] = []
    for line in text.splitlines():
        if match := _TIMED.match(line):
            found.append((float(match[1]), [match[2]]))
        elif found:
            found[-1][1].append(line.strip())
    return [LogLine(time, " ".join(parts)[:_MAX_TEXT]) for time, parts in found]


def _messages(text: str) -> int:
    return text.count("\n[") + 1


def parse_record(record: str) -> str:
    """Return a record of /dev/kmsg as dmesg shows it, or nothing where it is none.

    Its form is `priority,sequence,microseconds,flags;text`, then lines of key=value.
    """
    prefix, semicolon, rest = record.partition(";")
    fields = prefix.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isdigit():
        return ""
    text = _ESCAPED.sub(" ", rest.split("\n", 1)[0])
    return f"[{int(fields[2]) / 1e6:.6f}] {text}\n"


class Sieve:
    """Takes a log piece by piece, in either order, and keeps what `KernelLogFacts` says."""

    def __init__(self, newest_first: bool = False) -> None:
        self.newest_first = newest_first
        self.rest = ""  # of a message that the next piece may continue
        self.recent: deque[str] = deque()
        self.recent_lines = 0
        self.older: list[LogLine] = []
        self.kinds: Counter[str] = Counter()
        self.passed_over = 0
        self.oldest = ""

    def add(self, piece: str) -> None:
        """Take the next piece of the log's text."""
        text = self.rest + piece
        end = text.rfind("\n[") + 1
        self.rest = text[end:][:_MAX_REST]
        if end:
            self._take(text[:end])

    def facts(self, source: str) -> KernelLogFacts | None:
        """Return what was kept, None where there was no line."""
        self._take(self.rest)
        recent = [line for text in self.recent for line in parse_lines(text)]
        lines = [*recent, *self.older] if self.newest_first else [*self.older, *recent]
        if not lines:
            return None
        if self.newest_first:
            lines.reverse()
        ends = parse_lines(self.oldest)
        since = ends[-1 if self.newest_first else 0].time if ends else lines[0].time
        return KernelLogFacts(
            source=source,
            lines=lines,
            left_out=self.passed_over - len(self.older),
            since=since if since < lines[0].time else None,
        )

    def _take(self, text: str) -> None:
        if self.newest_first or not self.oldest:
            self.oldest = text
        if self.newest_first and self.recent_lines >= MAX_LINES:
            self._consider(text)
            return
        self.recent.append(text)
        self.recent_lines += _messages(text)
        # Whole pieces are passed over, so that a few lines more may stay.
        while self.recent_lines - _messages(self.recent[0]) >= MAX_LINES and not self.newest_first:
            self.recent_lines -= _messages(self.recent[0])
            self._consider(self.recent.popleft())

    def _consider(self, text: str) -> None:
        self.passed_over += _messages(text)
        if not any(word in text for word in _WORDS):
            return
        for line in parse_lines(text):
            found = _OF_INTEREST.search(line.text)
            if found and len(self.older) < MAX_LINES and self.kinds[found[0]] < _MAX_OF_A_KIND:
                self.kinds[found[0]] += 1
                self.older.append(line)


def from_kmsg(probe: Probe) -> Sieve:
    """Read the ring buffer itself; quick, but busy hosts overwrite its beginning."""
    sieve = Sieve()
    for record in probe.records("/dev/kmsg"):
        sieve.add(parse_record(record))
    return sieve


def from_journal(probe: Probe) -> Sieve:
    """Read the journal of this boot, which keeps what the ring buffer has overwritten.

    It comes newest first: where it is longer than there is time for, the oldest part is missing.
    """
    sieve = Sieve(newest_first=True)
    argv = ["journalctl", "-k", "-b", "-q", "-r", "--no-pager", "-o", "short-monotonic"]
    done = probe.run(*argv, limit=_JOURNAL_S, take=sieve.add)
    if not sieve.oldest and not sieve.rest:
        if done.exit_code:
            raise CannotLook(f"journalctl: {done.complaint}")
        raise CannotLook("journalctl -k -b shows nothing to this user")
    return sieve


def from_dmesg(probe: Probe) -> Sieve:
    """Read the ring buffer through the system call, where /dev/kmsg is missing (containers)."""
    sieve = Sieve()
    done = probe.run("dmesg", limit=_DMESG_S, take=sieve.add)
    if done.exit_code != 0:
        raise CannotLook(f"dmesg: {done.complaint.removeprefix('dmesg: ')}")
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
        if log is None:
            reasons.append(f"{source}: no line with a time")
        if log and (best is None or log.begins < best.begins):
            best = log
        if best and best.begins <= BOOT_LINES_S:
            return best
    if best is None:
        text = f"the kernel log cannot be read ({'; '.join(reasons)})"
        if not probe.is_root:
            text += ": run again with sudo, or add the user to the group systemd-journal"
        raise CannotLook(text)
    return best
