"""The last resort: an error about GPUs that no rule knows is quoted, and evidence asked for.

It speaks only where nothing else does. A text that is about other things, and one that only has the
word "error" in a notice, gets no answer.
"""

import re
from collections.abc import Iterator

from volta_doctor.catalog.why import Symptom
from volta_doctor.logs.text import Line
from volta_doctor.why.case import Case, Hit
from volta_doctor.why.vocabulary import ABOUT_GPUS

_NEAR_BEFORE, _NEAR_AFTER = 60, 30  # lines in which a text says what it is about (ours)

# An error is unmistakable where the line begins with it, behind what loggers put before.
_BEGINS = re.compile(
    r"(?:\[rank\d+\]:?\s*|E\s{2,})?(?:"
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Expired|NotFound|Timeout)(?:: |:?$|\()"  # Python
    r"|(?:\w+\.)*(?:exceptions?|errors?)\.[A-Z]\w+(?:: |:?$)"
    r"|(?:docker: )?(?:[Ee]rror|ERROR|FATAL|[Ff]atal|panic)(?: response from daemon)?:\s"
    r"|(?:FATAL|CRITICAL)\b|(?:\[\w+\])?\[(?:ERROR|FATAL|CRITICAL)\]|E: \w"
    r"|Fatal Python error|CMake Error|terminate called after|LLVM ERROR"
    r"|(?:[\w./+-]+: )?(?:(?:fatal )?error(?:: | \w+ing\b)|symbol lookup error)"
    r"|[\w./+-]+[(:]\d+(?:[:)]\d*)*:? (?:fatal )?error\b"
    r")"
)
# Or where it holds what only a program that ends says.
_HOLDS = re.compile(
    r"\b(?:proc|process|worker|actor)\b.{0,40}\bdied unexpectedly\b"
    r"|\bcore dumped\b|\bSegmentation fault\b|\bSIG(?:SEGV|ABRT|BUS|ILL|FPE)\b"
    r"|\b(?:GGML_ASSERT|GGML_ABORT)\b|\bCUDA error\b"
    r"|\bexit(?:ed)? (?:with )?(?:exit )?(?:code|status)[:= ]+-?[1-9]"
    r"|\bstatus=[1-9]\d*/|\blevel=(?:ERROR|FATAL)\b"
    r"|\bAssertion [`'\"].+ failed|error while loading shared libraries"
    r"|\bscheduler is dead\b|process has terminated\b"
)
_LEVEL = re.compile(  # of a logger, behind a process and a time
    r"^(?:\([^)]{2,80}\)\s*){0,3}(?:[\w.-]+\s+\|\s+)?(?:[\d:.,TZ/+-]+\s+){0,3}"
    r"\[?(?:ERROR|FATAL|CRITICAL)\b[\]\s]"
)
# A notice, whatever word stands behind it.
_NOTICE = re.compile(
    r"(?:^|[\s\[|=(])(?:INFO|DEBUG|TRACE|WARN|WARNING|NOTICE)(?=[\s\]:|)]|$)"
    r"|\blevel=(?:info|debug|warn)|\[(?:info|debug|warn|warning|notice)\]|\w+Warning: ",
    re.IGNORECASE,
)
_PROGRAM = re.compile(r"(?:\w{3} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) \S+ ([\w./@-]+)\[\d+\]: ")
_KERNEL = re.compile(r"\bkernel: |^\s*(?:<\d>)?\[\s*\d+\.\d{6}\] ")
# Lines that begin like an error and are none.
_HARMLESS = re.compile(
    r"pip's dependency resolver|Exception ignored in|Unable to register cu\w+ (?:factory|plugin)"
    r"|\bKeyboardInterrupt\b|\bCancelledError\b|error (?:rate|handling|count)",
    re.IGNORECASE,
)
_FRAMES = ("Traceback (", 'File "')  # the way to an error, which is the last line
_QUOTED = 160  # characters of the error in the answer (ours)
_MOST = 3  # lines in the answer (ours)

_BRING = [
    "the whole log from the server's start on, with its command line",
    "the output of python -m torch.utils.collect_env, or pip list of that environment",
    "the output of nvidia-smi",
    "volta-doctor snapshot of the host, for volta-doctor why",
]


def unknown_error(case: Case) -> tuple[Symptom, Hit] | None:
    """Return the first unmistakable error lines that are about GPUs; None without any."""
    found = [
        (number, text, line)
        for number, text in enumerate(case.printed)
        for line in _about_gpus(text.lines)
    ]
    if not found:
        return None
    number, _, line = found[0]
    quoted = line.body if len(line.body) <= _QUOTED else f"{line.body[:_QUOTED]}…"
    symptom = Symptom(
        name="unknown-error",
        patterns=[],
        means=f'no rule knows this error: "{quoted}"',
        bring=_BRING,
        source="ours",
        examples=[],
    )
    seen = [text.evidence(line) for _, text, line in found[:_MOST]]
    return symptom, Hit({}, seen, len(found), (number, line.number))


def _about_gpus(lines: list[Line]) -> list[Line]:
    """Return the errors near a line about GPUs, in a journal one of the same program."""
    by_program: dict[str, list[Line]] = {}
    for line in lines:
        tag = _PROGRAM.match(line.text)
        by_program.setdefault(tag[1] if tag else "", []).append(line)
    found = [line for own in by_program.values() for line in _near_gpus(own)]
    return sorted(found, key=lambda line: line.number)


def _near_gpus(lines: list[Line]) -> Iterator[Line]:
    about: list[int] = [at for at, line in enumerate(lines) if ABOUT_GPUS.search(line.text)]
    if not about:
        return
    near = 0
    for at, line in enumerate(lines):
        if not is_error(line):
            continue
        while near + 1 < len(about) and about[near] < at - _NEAR_BEFORE:
            near += 1
        if at - _NEAR_BEFORE <= about[near] <= at + _NEAR_AFTER:
            yield line


def is_error(line: Line) -> bool:
    """Say whether a line is a program's last word, and no notice with such a word in it."""
    text = line.text
    if _KERNEL.search(text) or _HARMLESS.search(text) or line.body.startswith(_FRAMES):
        return False
    if begins := _BEGINS.match(line.body):
        start = text.find(line.body) + begins.start()
    elif holds := _HOLDS.search(text) or _LEVEL.search(text):
        start = holds.start()
    else:
        return False
    return not _NOTICE.search(text[:start])
