"""What the checks of the kernel log share."""

from collections.abc import Sequence

from volta_doctor.facts.kernel_log import BOOT_LINES_S, KernelLogFacts
from volta_doctor.facts.kernel_log.events import Event
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.findings import Evidence


def kernel_log(facts: Facts) -> KernelLogFacts:
    """Return the log. Raises Missing for an empty one, which is no clean one."""
    log = facts.kernel_log.need()
    if not log.lines:
        raise Missing(f"{log.source} is empty")
    return log


def window(log: KernelLogFacts) -> str:
    """Say how far back the log goes."""
    if log.begins > BOOT_LINES_S:
        return f"in {log.source}, which begins {log.begins:.0f} s after boot"
    return f"in {log.source} since boot"


def times(number: int) -> str:
    """Put a count in words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def shown(events: Sequence[Event]) -> list[Evidence]:
    """Return the first and the last line of many."""
    return [event.evidence for event in (events if len(events) < 3 else (events[0], events[-1]))]
