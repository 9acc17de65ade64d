"""One check's function run: whatever becomes of it is a finding."""

from collections.abc import Callable, Iterable

from volta_doctor.catalog import Row
from volta_doctor.facts.model import Missing
from volta_doctor.findings import Finding


def of(row: Row, judge: Callable[[], Finding | Iterable[Finding]], nothing: str) -> list[Finding]:
    """Return what a check finds: unknown where it misses a fact or fails itself.

    `nothing` is said where it finds nothing at all.
    """
    try:
        found = judge()
        findings = [found] if isinstance(found, Finding) else list(found)
        return findings or [row.unknown(nothing)]
    except Missing as reason:
        return [row.unknown(str(reason))]
    except Exception as error:  # a fault in one check must not hide the others' findings
        return [row.unknown(f"the check itself failed: {type(error).__name__}: {error}")]
