"""Memory pages that a card has taken out of use: how many, how fast, and is there room for more?

Volta retires pages, at most 64 on a card; Ampere and newer remap rows instead.
"""

from datetime import datetime, timezone

from volta_doctor.catalog import Row
from volta_doctor.checks.earlier import AGAIN, DAY, points
from volta_doctor.checks.gpu import per_gpu, seen, told
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import GpuFacts, RetiredPage
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several

_FAIL, _WARN, _INFO = 63, 55, 11
_FULL = 62
_TREND_PAGES = 15
_TREND_NEW = 1
_WEEK = 7 * DAY
# NVML's timestamps are since the epoch, in a unit that its documentation does not name: what is a
# year between 2001 and 2100 in one of these is taken for that.
_UNITS = (1, 1_000_000)
_YEAR_2001, _YEAR_2100 = 978_307_200, 4_102_444_800


def pages(gpu: GpuFacts) -> tuple[list[RetiredPage], list[RetiredPage]]:
    """Return the pages retired for single-bit and for double-bit errors, the pending included."""
    return (
        told(gpu.retired_pages.single_bit, "pages retired for single-bit errors"),
        told(gpu.retired_pages.double_bit, "pages retired for double-bit errors"),
    )


def retired_at(page: RetiredPage) -> int | None:
    """Return when a page was retired, in seconds since the epoch, as far as it is plausible."""
    for unit in _UNITS:
        seconds = (page.timestamp or 0) // unit
        if _YEAR_2001 <= seconds <= _YEAR_2100:
            return seconds
    return None


def shown_pages(facts: Facts, single: list[RetiredPage], double: list[RetiredPage]) -> Evidence:
    """Return the counts as evidence."""
    return seen(facts, f"retired pages: {len(single)} single-bit, {len(double)} double-bit")


@check("retired-total")
@per_gpu
def retired_total(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A card near its limit has no pages left to give."""
    single, double = pages(gpu)
    total, evidence = len(single) + len(double), shown_pages(facts, single, double)
    text = f"{several(total, 'page')} retired of the 64 that a card can retire."
    if total >= _FAIL:
        return row.fail(text, evidence, count=total)
    if total >= _WARN:
        return row.warn(text, evidence, count=total)
    if total >= _INFO:
        return row.info(text, evidence, count=total)
    return row.ok(text, evidence)


@check("retired-trend")
@per_gpu
def retired_trend(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Many pages are a card's age; many of them new are its end."""
    double = told(gpu.retired_pages.double_bit, "pages retired for double-bit errors")
    evidence = seen(facts, f"retired pages: {len(double)} double-bit")
    if len(double) <= _TREND_PAGES:
        return row.ok(f"{several(len(double), 'page')} retired for double-bit errors.", evidence)
    fewest, most, grounds = _new_in_a_week(facts, gpu, double)
    text = f"{several(len(double), 'page')} retired for double-bit errors"
    if fewest > _TREND_NEW:
        text = f"{text}, at least {fewest} of them in the last 7 days."
        return row.fail(text, evidence, *grounds, count=len(double))
    if most <= _TREND_NEW:
        return row.ok(f"{text}, {most} of them in the last 7 days.", evidence, *grounds)
    return row.unknown(
        f"{text}, and neither their timestamps nor a snapshot 7 days old tell whether"
        f" more than {_TREND_NEW} of them is of the last 7 days. {AGAIN}",
        evidence,
        *grounds,
    )


def _new_in_a_week(
    facts: Facts, gpu: GpuFacts, double: list[RetiredPage]
) -> tuple[int, int, list[Evidence]]:
    """Return how many pages of the last week there are at least and at most, and what says so."""
    week_ago = facts.host.need().time - _WEEK
    times = [time for time in map(retired_at, double) if time is not None]
    if len(times) == len(double):
        recent = sum(time > week_ago for time in times)
        newest = datetime.fromtimestamp(max(times), timezone.utc).isoformat()
        return recent, recent, [seen(facts, f"the newest is of {newest}, by its timestamp")]
    before = points(facts, gpu, lambda sample: sample.retired_double_bit)
    # the oldest of this week shows the least that is new, the newest of those before it the most
    within = [point for point in before if point.time > week_ago][-1:]
    older = [point for point in before if point.time <= week_ago][:1]
    fewest = max([0, *(len(double) - point.reading for point in within)])
    most = min([len(double), *(len(double) - point.reading for point in older)])
    return fewest, most, [point.evidence for point in (*within, *older)]


@check("retired-pending")
@per_gpu
def retired_pending(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Until the next reset a pending page stays in use."""
    single, double = pages(gpu)
    evidence = shown_pages(facts, single, double)
    if not told(gpu.retired_pages.pending, "pending page retirement"):
        return row.ok("No page retirement is pending.", evidence)
    count = len(single) + len(double)
    if double and _newest(double, after=single):
        return row.fail("A page with a double-bit error is still in use.", evidence, count=count)
    return row.warn(
        "A page is still in use and will be retired at the reset.", evidence, count=count
    )


def _newest(these: list[RetiredPage], after: list[RetiredPage]) -> bool:
    """Say whether the newest page is one of these, as far as timestamps tell."""
    if not after:
        return True
    here, there = map(retired_at, these), map(retired_at, after)
    times, others = list(here), list(there)
    if None in times or None in others:
        return False
    return max(filter(None, times)) > max(filter(None, others))


@check("retired-full")
@per_gpu
def retired_full(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A page that finds no room in the table stays in use for good."""
    single, double = pages(gpu)
    pending = told(gpu.retired_pages.pending, "pending page retirement")
    total, evidence = len(single) + len(double), shown_pages(facts, single, double)
    if pending and total >= _FULL:
        text = f"{several(total, 'page')} retired of 64, and another is pending."
        return row.fail(text, evidence, count=total)
    waits = "one is pending" if pending else "none is pending"
    return row.ok(f"{several(total, 'page')} retired of 64, and {waits}.", evidence)
