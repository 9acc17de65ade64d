"""Extensions of another Python: the tag in a file's name against the Python that runs."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule

# PEP 3149 and PEP 425; an abi3 file fits any Python.
_BUILT = re.compile(r"(?P<stem>[\w]+)\.cpython-(?P<tag>3\d+)t?-[\w-]+\.so\b")
_MISSING = re.compile(
    r"No module named ['\"](?:[\w.]*\.)?(?P<whole>\w+)['\"]"
    r"|cannot import name ['\"](?P<name>\w+)['\"] from (?:partially initialized module )?['\"]"
)
_RUNS = re.compile(
    r"\bPython[ :]+(?:version[: ]+)?3\.(?P<said>\d+)\b|[/\\]python3\.(?P<path>\d+)[/\\]"
    r"|\bpython3\.(?P<program>\d+) |(?<![\d.])3\.(?P<full>\d+)\.\d+ \((?:main|default|tags)\b",
    re.IGNORECASE,
)


@rule("python-version")
def not_found_though_there(case: Case, row: Row) -> Iterator[Finding]:
    """A module that is not found, though its file lies there for another Python."""
    built: dict[str, tuple[str, Evidence]] = {}
    missing: dict[str, Evidence] = {}
    runs: dict[str, Evidence] = {}
    for match, evidence in case.matching(_BUILT):
        built.setdefault(match["stem"], (match["tag"], evidence))
    for match, evidence in case.matching(_MISSING) if built else ():
        missing.setdefault(match["whole"] or match["name"], evidence)
    for match, evidence in case.matching(_RUNS) if missing else ():
        minor = match["said"] or match["path"] or match["program"] or match["full"]
        runs.setdefault(f"3{minor}", evidence)
    for stem, (tag, file) in built.items():
        if stem not in missing:
            continue
        others = {python: seen for python, seen in runs.items() if python != tag}
        if not others:  # it is not told which one runs, or another fault hides in the import
            continue
        python, seen = next(iter(others.items()))
        finding = row.fail(
            f"{stem} is there for Python 3.{tag[1:]}, and 3.{python[1:]} does not find it.",
            *dict.fromkeys([missing[stem], file, seen]),
        )
        if tag in runs:
            yield likely(finding, "the text names both Pythons, and not which of them ran this")
        else:
            yield finding
        return
