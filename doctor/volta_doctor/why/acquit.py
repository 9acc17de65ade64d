"""Takes the blame from cards where the text itself shows that software was at fault."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from volta_doctor.facts.kernel_log import events
from volta_doctor.findings import Finding, Status
from volta_doctor.why.case import Case
from volta_doctor.why.rules.experiments import decided

_HALTED = 62  # the internal micro-controller halted
_SWITCH = "custom-allreduce-topology"
_WHY = "It came on several cards, and a flag of the server makes the difference: software."


def acquitted(case: Case, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Let Xid 62 on several cards be a notice, where without the engine's all-reduce it is gone.

    One card that halts may be a broken card. Several at once, in a load that runs with a flag of
    the server changed, were stopped by that load.
    """
    for finding in findings:
        blamed = finding.id == "xid-fatal" and finding.status is Status.FAIL
        if blamed and _is_software(case):
            said = f"{finding.message} {_WHY}"
            finding = structs.replace(finding, status=Status.INFO, message=said)
        yield finding


def _is_software(case: Case) -> bool:
    if _SWITCH not in decided(case) and not case.found("custom-allreduce-capture"):
        return False
    xids = events.xids(case.facts.kernel_log.need())
    return {xid.number for xid in xids} == {_HALTED} and len({xid.bus for xid in xids}) > 1
