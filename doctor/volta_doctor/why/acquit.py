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
    log = case.facts.kernel_log.data
    xids = events.xids(log) if log else []
    halted = {xid.bus for xid in xids} if {xid.number for xid in xids} == {_HALTED} else set()
    software = len(halted) > 1 and (
        _SWITCH in decided(case) or case.found("custom-allreduce-capture")
    )
    for finding in findings:
        if software and finding.id == "xid-fatal" and finding.status is Status.FAIL:
            said = f"{finding.message} {_WHY}"
            finding = structs.replace(finding, status=Status.INFO, message=said)
        yield finding
