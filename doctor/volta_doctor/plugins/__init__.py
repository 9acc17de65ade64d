"""A site's own checks: Python packages by entry point, and directories of rules.

They stand beside the catalogue's and are judged like them. One that cannot be loaded becomes a
finding of the check `plugin-broken` and hides no other.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from volta_doctor.catalog import Row, checks
from volta_doctor.checks.registry import CHECKS, CheckFunction, check
from volta_doctor.deadline import within

if TYPE_CHECKING:
    from volta_doctor.facts.model import Facts
    from volta_doctor.findings import Finding

GROUP = "volta_doctor.checks"
SITE = Path("/etc/volta-doctor/checks.d")
VARIABLE = "VOLTA_DOCTOR_PLUGINS"
LIMIT_S = 5.0  # for loading a package and for making a check
_SUFFIXES = (".yaml", ".yml")

_added: list[str] = []

BROKEN = Row(
    id="plugin-broken",
    area="plugins",
    title="every check that the site adds can be loaded",
    needs=[],
    rule={"ok": "each loads; for one that does not it is unknown what that check would find"},
    hides=[],
    fix="Correct or remove the file or package that is named.",
    risk="reconfigure",
    source="ours",
)


class Fault(NamedTuple):
    """A plugin that could not be loaded: a file, directory or package, and why."""

    source: str
    reason: str


def directories(env: Mapping[str, str], site: bool = True) -> list[Path]:
    """Return where rules are looked for: the site's own directory, then the variable's."""
    named = [Path(part) for part in env.get(VARIABLE, "").split(":") if part]
    return ([SITE] if site and SITE.exists() else []) + named


def load(places: Iterable[Path]) -> list[Fault]:
    """Add what packages and the directories bring, in place of what an earlier call added.

    The faults are also what `plugin-broken` finds; without any plugin there is no such check.
    """
    while _added:
        check_id = _added.pop()
        del checks()[check_id], CHECKS[check_id]
    before = set(checks())
    faults = []
    sources = 0
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        sources += 1
        known = set(checks())
        try:
            within(LIMIT_S, lambda point=point: point.load()())  # type: ignore[misc]
        except Exception as error:
            faults.append(Fault(f"{point.name} ({point.value})", _words(error)))
        for check_id in checks().keys() - known:
            CHECKS[check_id] = _guarded(CHECKS[check_id])
    for file, fault in _files(places):
        sources += 1
        try:
            if fault:
                raise ValueError(fault)
            from volta_doctor.plugins import rules

            rule = rules.read(file)
            check(rule)(_guarded(rules.judge))
        except Exception as error:
            faults.append(Fault(str(file), _words(error)))
    if sources:
        check(BROKEN)(_broken(faults))
    _added.extend(checks().keys() - before)
    return faults


def _guarded(function: CheckFunction) -> CheckFunction:
    """Hold a site's function to what the judge relies on."""

    def judge(facts: "Facts", row: Row) -> "list[Finding]":
        def call() -> "list[Finding]":
            found = function(facts, row)
            return [found] if isinstance(found, Finding) else list(found)

        from volta_doctor.findings import Finding

        findings = within(LIMIT_S, call)
        for finding in findings:
            if not isinstance(finding, Finding) or finding.id != row.id:
                raise TypeError(f"it must return findings of its own row, not {finding!r}")
        return findings

    return judge


def _broken(faults: list[Fault]) -> CheckFunction:
    def judge(_facts: "Facts", row: Row) -> "list[Finding]":
        if not faults:
            return [row.ok("All of them load.")]
        return [row.unknown(fault.reason, subject=fault.source) for fault in faults]

    return judge


def _files(places: Iterable[Path]) -> Iterable[tuple[Path, str]]:
    """Give the rule files in order, or a directory with the reason why it cannot be read."""
    for place in places:
        try:
            files = sorted(path for path in place.iterdir() if path.suffix in _SUFFIXES)
        except OSError as error:
            yield place, str(error.strerror)
            continue
        yield from ((file, "" if file.is_file() else "not a file") for file in files)


def _words(error: Exception) -> str:
    if isinstance(error, ValueError | TimeoutError):
        return str(error)
    return f"{type(error).__name__}: {error}"
