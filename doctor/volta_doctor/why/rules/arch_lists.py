"""Lists of architectures that builds were given."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.arch_list import parse, shown
from volta_doctor.checks.environments import volta_arch
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import on_volta, rule

# TORCH_CUDA_ARCH_LIST="8.0 9.0+PTX" in a shell, a Dockerfile, Python, CMake's cache, -D.
_LIST = re.compile(
    r"(?P<name>TORCH_CUDA_ARCH_LIST|CMAKE_CUDA_ARCHITECTURES|CUDAARCHS)(?::\w+)?['\"\]]*\s*[=:]\s*"
    r"(?P<quote>['\"])?(?P<value>[\d.+PTXafrelvirtu;,\- ]*\d[\d.+PTXafrelvirtu;,\- ]*)"
)
_CMAKE_LIST = re.compile(r"CUDA (?:supported )?target architectures: (?P<value>\d[\d.;af+PTX]*)")
# A list that is set here and now, and not merely shown among a host's variables.
_SET = re.compile(r"\bexport\b|\b(?:ENV|ARG|set)\b|environ|-D|\bpip\b|cmake|python|build|make|-e ")
_BROKEN_BUILDS = ("no-kernel-image", "build-stopped", "undefined-symbol")


class _Asked(NamedTuple):
    """A list of architectures: its variable and value, and whether it is set where it stands."""

    variable: str
    value: str
    is_set: bool
    evidence: Evidence


def _lists(case: Case) -> Iterator[_Asked]:
    for match, evidence in case.matching(_LIST, sources=True):
        # Between quotes a list may have blanks; elsewhere a blank ends it, but for a line that is
        # nothing but the variable.
        whole = match["quote"] or match.start() == 0
        value = match["value"] if whole else match["value"].split(" ")[0]
        is_set = bool(_SET.search(match.string))
        yield _Asked(match["name"], value.strip(), is_set, evidence)
    for match, evidence in case.matching(_CMAKE_LIST, sources=True):
        yield _Asked("TORCH_CUDA_ARCH_LIST", match["value"], True, evidence)


@rule("arch-list-env")
def arch_list(case: Case, row: Row) -> Iterator[Finding]:
    """A list without 7.0 that a build was given."""
    if case.card == "other":
        return
    volta = int(volta_arch())
    broken = case.shows(*_BROKEN_BUILDS)
    for asked in _lists(case):
        entries = parse(asked.variable, asked.value)
        if not entries or any(e.number == volta or (e.number < volta and e.ptx) for e in entries):
            continue
        if not (asked.is_set or broken):
            continue
        named = ", ".join(shown(entry.number) for entry in entries)
        text = f"{asked.variable}={asked.value} makes no code for a V100: {named}; a V100 is 7.0."
        yield on_volta(case, row.fail(text, asked.evidence))
        return
