"""What nvidia-smi's end says: its exit code, the time that it took, and that it never came."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.commands import Ran, commands
from volta_doctor.why.rules import likely, rule

# The codes that have a diagnosis of their own (nvidia-smi manual page, return value).
_CODES = {
    8: ("power-cable", "a power cable of a card is not attached"),
    9: ("driver-loaded", "the driver is not loaded"),
    12: ("driver-loaded", "the NVML library is not found"),
    14: ("inforom", "the InfoROM of a card is corrupted"),
    15: ("gpu-lost", "a GPU is lost"),
}
_REST = {
    2: "an argument is wrong",
    3: "a card cannot do what was asked",
    4: "its caller may not do it",
    6: "it did not find what it was asked for",
    10: "the kernel detects an interrupt issue with a card",
    13: "the NVML library lacks a function",
}
_KILLED = (124, 137, 143)  # timeout(1), and signals 9 and 15 as a shell tells them
_LEAST_S = 10  # the check's limit
_SMI = re.compile(r"\bnvidia-smi\b")
# nvidia-smi > /dev/null; echo rc=$?
_ASKED = re.compile(r"\becho\b.*\$(?:\?|\{?PIPESTATUS)")
_TOLD = re.compile(
    r"^(?:rc|ret|exit|code|status|\$\?|exit[ _]?(?:code|status))?\W{0,3}(\d{1,3})\W*$", re.I
)
# nvidia-smi exited with code 14; nvidia-smi -q: exit status 14; nvidia-smi rc=14. What it
# "returns" may also be a number of cards.
_SAID = re.compile(
    r"\bnvidia-smi\b[^.\n]{0,60}?\b(?:rc|exit\w*(?: with)?(?: (?:code|status|value))?(?: of)?"
    r"|return(?:ed|s)?(?: (?:an?|with|non-?zero|exit|error))* (?:code|status|value)(?: of)?)"
    r"\W{1,3}(?P<code>\d{1,3})\b",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"\btimeout (?:-\S+ (?:[A-Z]+ )?)*(\d+(?:\.\d+)?[smh]?)\b.{0,20}\bnvidia-smi\b")


class Exit(NamedTuple):
    """A code that nvidia-smi ended with, and where that stands."""

    code: int
    evidence: list[Evidence]
    command: str


@lru_cache(maxsize=1)
def exits(case: Case) -> list[Exit]:
    """Return the ends of nvidia-smi: of commands with `echo $?`, and in sentences."""
    return [*_of_commands(case), *_of_sentences(case)] if case.lines("nvidia-smi", 1) else []


def _of_commands(case: Case) -> Iterator[Exit]:
    ran = commands(case)
    for at, one in enumerate(ran):
        if not _SMI.search(one.command):
            continue
        asking: list[Ran] = []
        if _ASKED.search(one.command):
            asking = [one]
        elif at + 1 < len(ran) and ran[at + 1].command.startswith("echo"):
            asking = [ran[at + 1]] if _ASKED.search(ran[at + 1].command) else []
        for asked in asking:
            codes = [(m[1], seen) for text, seen in asked.output if (m := _TOLD.match(text))]
            if codes:
                code, seen = codes[-1]
                yield Exit(int(code), list(dict.fromkeys([one.evidence, seen])), one.command)


def _of_sentences(case: Case) -> Iterator[Exit]:
    for match, seen in case.matching(_SAID):
        yield Exit(int(match["code"]), [seen], match.string)


def ended_with_its_code(case: Case, row: Row) -> Iterator[Finding]:
    """A code that stands for one fault shows it, whatever nvidia-smi printed."""
    for end in exits(case):
        check_id, meaning = _CODES.get(end.code, ("", ""))
        if check_id == row.id:
            text = f"nvidia-smi exits {end.code}: {meaning}."
            yield row.fail(text, *end.evidence)
            return


for _id in sorted({check_id for check_id, _ in _CODES.values()}):
    rule(_id)(ended_with_its_code)


@rule("smi-rc")
def other_codes(case: Case, row: Row) -> Iterator[Finding]:
    """The other codes; one that stands for a fault of its own is told there."""
    for end in exits(case):
        if end.code in _REST:
            say = row.warn if end.code in (3, 6, 13) else row.fail
            yield say(f"nvidia-smi exits {end.code}: {_REST[end.code]}.", *end.evidence)
            return


@rule("smi-hang")
def ended_by_a_limit(case: Case, row: Row) -> Iterator[Finding]:
    """A command that had to be ended gave no answer."""
    for end in exits(case):
        limit = _LIMIT.search(end.command)
        if end.code in _KILLED and limit:
            text = f"nvidia-smi had not returned after {limit[1]}, and was ended ({end.code})."
            finding = row.fail(text, *end.evidence)
            yield (
                finding
                if float(limit[1].rstrip("smh")) >= _LEAST_S
                else likely(finding, "so short a limit also ends one that is merely slow")
            )
            return
