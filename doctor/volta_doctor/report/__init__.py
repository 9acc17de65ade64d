"""The report: findings with their summary, and the formats that it can be written in."""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import import_module
from typing import TextIO

import msgspec

from volta_doctor.facts.model import Snapshot
from volta_doctor.findings import SEVERITY, Finding, Status
from volta_doctor.profile import Profile

SCHEMA = 1
_VERDICTS = {0: "healthy", 1: "warnings", 2: "failures", 3: "could not tell"}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, and findings by status; `folded` of them stand under a root cause.

    Waived ones are counted as `waived` and not by their status.
    """

    verdict: str
    exit_code: int
    fail: int
    unknown: int
    warn: int
    info: int
    ok: int
    skip: int
    waived: int
    folded: int

    @property
    def counts(self) -> dict[str, int]:
        """The counts by status, worst first, and of what is waived."""
        return {name: getattr(self, name) for name in (*(s.value for s in SEVERITY), "waived")}

    @property
    def told(self) -> str:
        """The counts in words, without zeros."""
        shown = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        return f"{shown}; {self.folded} of them folded under their cause" if self.folded else shown


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `volta-doctor check` says of one host at one time (`taken`: ISO 8601, UTC).

    `notes` are about the judging itself: a waiver that no longer holds.
    """

    schema: int
    tool: str
    taken: str
    host: str
    profile: Profile
    summary: Summary
    findings: list[Finding]
    notes: list[str] = []

    @property
    def time(self) -> datetime:
        """When the facts were taken, in UTC."""
        return datetime.fromisoformat(self.taken).astimezone(timezone.utc)

    @property
    def verb(self) -> str:
        """The words after `volta-doctor` that made it."""
        return "check"

    @property
    def judged(self) -> str:
        """The name of what was judged, empty where it has none."""
        return self.host

    @property
    def labels(self) -> dict[str, str]:
        """Labels that keep its series apart from those of other reports of this host."""
        return {}

    def about(self, verbose: bool) -> list[str]:  # noqa: ARG002 - of a host there is no more
        """What was judged, by what rules and when, in lines."""
        profile = f"profile {self.profile.name}: {self.profile.reason}"
        return [profile, f"{self.taken}, {self.tool}"]

    @property
    def further(self) -> list[tuple[str, str]]:
        """Commands that come next whatever was found, each with what it is for."""
        return []


Format = Callable[[Report, TextIO, bool], str]


def exit_code(findings: list[Finding]) -> int:
    """Return 2 for failures, else 3 where something could not be told, else 1 for warnings.

    A waived problem counts as ok. When every check was skipped nothing was judged, and that is no
    health either.
    """
    seen = {Status.OK if finding.waived else finding.status for finding in findings}
    if Status.FAIL in seen:
        return 2
    if Status.UNKNOWN in seen or seen <= {Status.SKIP}:
        return 3
    return 1 if Status.WARN in seen else 0


def summary(findings: list[Finding]) -> Summary:
    """Return the verdict on findings, and their counts."""
    code = exit_code(findings)
    counts = {
        status.value: sum(f.status is status and not f.waived for f in findings)
        for status in Status
    }
    return Summary(
        verdict=_VERDICTS[code],
        exit_code=code,
        waived=sum(finding.waived is not None for finding in findings),
        folded=sum(finding.folded_under is not None for finding in findings),
        **counts,
    )


def build(
    snapshot: Snapshot, profile: Profile, findings: list[Finding], notes: Sequence[str] = ()
) -> Report:
    """Put together the report on ranked findings."""
    return Report(
        schema=SCHEMA,
        tool=snapshot.tool,
        taken=snapshot.taken,
        host=snapshot.facts.host.data.hostname if snapshot.facts.host.data else "",
        profile=profile,
        summary=summary(findings),
        findings=findings,
        notes=list(notes),
    )


def _format(name: str) -> Format:
    def render(report: Report, file: TextIO, verbose: bool) -> str:
        text: str = import_module(f"{__name__}.{name}").render(report, file, verbose)
        return text

    return render


# Each is the module of its name in this package, loaded when it is used; its `render` returns the
# whole report as text. `file` is where the text will go (width, colours), `verbose` asks for all.
FORMATS: dict[str, Format] = {
    name: _format(name) for name in ("table", "json", "junit", "sarif", "prometheus", "markdown")
}
