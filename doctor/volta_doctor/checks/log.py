"""What the checks of the kernel log share."""

from collections.abc import Sequence

from volta_doctor.facts.kernel_log import BOOT_LINES_S, KernelLogFacts
from volta_doctor.facts.kernel_log.events import Event
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.findings import Evidence
from volta_doctor.words import duration

# A log that no longer reaches back to the boot speaks for a host's health when it holds a day: a
# host that is up for months has no more, and what an older error left behind (a lost GPU, retired
# pages, counters, links that are down) other checks see.
_ENOUGH_S = 86_400


def kernel_log(facts: Facts) -> KernelLogFacts:
    """Return the log. Raises Missing for an empty one, which is no clean one."""
    log = facts.kernel_log.need()
    if not log.lines:
        raise Missing(f"{log.source} is empty")
    return log


def window(log: KernelLogFacts) -> str:
    """Say how far back the log goes."""
    if log.excerpt:
        return f"in {log.source}"
    if log.begins > BOOT_LINES_S:
        return f"in {log.source}, which begins {duration(log.begins)} after boot"
    return f"in {log.source} since boot"


def clean(facts: Facts) -> str:
    """Say how far back the log goes in which nothing was found.

    Raises Missing where the lines of the boot are lost and those of less than a day are left.
    """
    log = kernel_log(facts)
    if log.begins > BOOT_LINES_S:
        host = facts.host.need()
        left = max(0.0, host.time - host.boot_time - log.begins)
        if left < _ENOUGH_S:
            text = f"{log.source} holds the last {duration(left)} only; what is older is lost."
            raise Missing(text)
    return window(log)


def times(number: int) -> str:
    """Put a count in words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def shown(events: Sequence[Event]) -> list[Evidence]:
    """Return the first and the last line of many."""
    return [event.evidence for event in (events if len(events) < 3 else (events[0], events[-1]))]
