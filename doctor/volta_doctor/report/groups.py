"""Findings put together as a reader wants them: one paragraph for one thing to know or to do."""

import re
import shlex
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from volta_doctor.findings import HOST, MODEL, Evidence, Finding, Status, Step

T = TypeVar("T")

_BY_REASON = (Status.UNKNOWN, Status.SKIP)
_RIGHTS = re.compile(r"permission denied|operation not permitted|with sudo", re.IGNORECASE)


class Group(NamedTuple):
    """Findings of one paragraph, in rank order; all have one status and one waiver, or none."""

    findings: list[Finding]

    @property
    def first(self) -> Finding:
        """The one that speaks for all: status, title, remedy, waiver."""
        return self.findings[0]

    @property
    def label(self) -> str:
        """The status, or that the problem is waived."""
        return "waived" if self.first.waived else self.first.status.value

    @property
    def ids(self) -> list[str]:
        """The checks, each once."""
        return _unique(finding.id for finding in self.findings)

    @property
    def messages(self) -> dict[str, list[str]]:
        """What was found, and on which subjects; a host or model as a whole is not named."""
        found: dict[str, list[str]] = {}
        for finding in self.findings:
            subjects = found.setdefault(finding.message, [])
            if finding.subject not in (HOST, MODEL) and finding.subject not in subjects:
                subjects.append(finding.subject)
        return found

    @property
    def evidence(self) -> list[Evidence]:
        """What was seen, each once."""
        return _unique(seen for finding in self.findings for seen in finding.evidence)

    @property
    def steps(self) -> list[Step]:
        """What `volta-doctor fix` can do about it, each step once."""
        steps: list[Step] = []
        for finding in self.findings:
            steps += [step for step in finding.remedy.steps if step not in steps]
        return steps

    @property
    def hides(self) -> list[str]:
        """The checks whose findings are folded under these."""
        return _unique(check_id for finding in self.findings for check_id in finding.hides)


def grouped(findings: Iterable[Finding], wanted: Callable[[Finding], bool]) -> list[Group]:
    """Put together the wanted findings that one paragraph can tell, in rank order.

    What one check found on several subjects goes together, and so do checks that could not tell,
    or were skipped, for one and the same reason.
    """
    groups: dict[object, Group] = {}
    for finding in filter(wanted, findings):
        same = finding.message if finding.status in _BY_REASON else finding.id
        key = (finding.status, finding.waived, same)
        groups.setdefault(key, Group([])).findings.append(finding)
    return list(groups.values())


def place(seen: Evidence) -> str:
    """Name where a piece of evidence stands, as grep does: source:line."""
    return f"{seen.source}:{seen.line}" if seen.line else seen.source


def command(step: Step) -> str:
    """Return the shell's words for a step that runs something."""
    return shlex.join(step.run)


def calls_for_action(finding: Finding) -> bool:
    """Say whether its remedy is to be told: something was found, and is not waived."""
    return finding.status in (Status.FAIL, Status.WARN, Status.INFO) and not finding.waived


def lacks_rights(finding: Finding) -> bool:
    """Say whether it is unknown because this user may not look."""
    return finding.status is Status.UNKNOWN and bool(_RIGHTS.search(finding.message))


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))
