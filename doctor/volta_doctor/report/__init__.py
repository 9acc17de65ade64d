"""The report: findings with their summary, as a table or as JSON."""

import msgspec

from volta_doctor.facts.model import Snapshot
from volta_doctor.findings import Finding, Status
from volta_doctor.profile import Profile

SCHEMA = 1
_VERDICTS = {0: "healthy", 1: "warnings", 2: "failures", 3: "could not tell"}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, and findings by status; `folded` of them stand under a root cause."""

    verdict: str
    exit_code: int
    fail: int
    unknown: int
    warn: int
    info: int
    ok: int
    skip: int
    folded: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `volta-doctor check` says of one host at one time (`taken`: ISO 8601, UTC)."""

    schema: int
    tool: str
    taken: str
    host: str
    profile: Profile
    summary: Summary
    findings: list[Finding]


def exit_code(findings: list[Finding]) -> int:
    """Return 2 for failures, else 3 where something could not be told, else 1 for warnings.

    When every check was skipped nothing was judged, and that is no health either.
    """
    seen = {finding.status for finding in findings}
    if Status.FAIL in seen:
        return 2
    if Status.UNKNOWN in seen or seen <= {Status.SKIP}:
        return 3
    return 1 if Status.WARN in seen else 0


def build(snapshot: Snapshot, profile: Profile, findings: list[Finding]) -> Report:
    """Put together the report on ranked findings."""
    code = exit_code(findings)
    counts = {
        status.value: sum(finding.status is status for finding in findings) for status in Status
    }
    return Report(
        schema=SCHEMA,
        tool=snapshot.tool,
        taken=snapshot.taken,
        host=snapshot.facts.host.data.hostname if snapshot.facts.host.data else "",
        profile=profile,
        summary=Summary(
            verdict=_VERDICTS[code],
            exit_code=code,
            folded=sum(finding.folded_under is not None for finding in findings),
            **counts,
        ),
        findings=findings,
    )


def to_json(report: Report) -> str:
    """Return the report as JSON; schema.json beside this file describes it."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
