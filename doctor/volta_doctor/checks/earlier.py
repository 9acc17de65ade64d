"""Counters against what they read before, from the history."""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

from volta_doctor.checks.gpu import subject
from volta_doctor.facts.history import GpuSample
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts
from volta_doctor.findings import Evidence

Counter = Callable[[GpuSample], int | None]

DAY = 86_400
AGAIN = (
    "Run volta-doctor again in a while, or compare with an older snapshot: check --since OLD.json."
)
NOTHING_EARLIER = f"No earlier reading since the driver was loaded tells what is new. {AGAIN}"


class Point(NamedTuple):
    """What a counter read at a time (seconds since the epoch), `age` seconds ago."""

    time: int
    age: int
    reading: int

    @property
    def evidence(self) -> Evidence:
        """The earlier reading."""
        when = datetime.fromtimestamp(self.time, timezone.utc).isoformat()
        return Evidence("history", f"{self.reading} at {when}")


def points(facts: Facts, gpu: GpuFacts, counter: Counter) -> list[Point]:
    """Return all earlier readings of a GPU, newest first."""
    now = facts.host.need().time
    found = []
    for sample in reversed(facts.history.need().samples):
        of_gpu = sample.gpus.get(subject(gpu))
        count = counter(of_gpu) if of_gpu else None
        if count is not None and sample.time < now:
            found.append(Point(sample.time, now - sample.time, count))
    return found


def earlier(facts: Facts, gpu: GpuFacts, count: int, counter: Counter) -> list[Point]:
    """Return the earlier readings from which the counter has counted on to `count`, newest first.

    It starts anew at a boot and when the driver is loaded again, which shows as a lower count.
    Raises Missing, with the remedy, where there is none.
    """
    boot_time = facts.host.need().boot_time
    found: list[Point] = []
    ceiling = count
    for point in points(facts, gpu, counter):
        if point.time < boot_time or point.reading > ceiling:
            break
        found.append(point)
        ceiling = point.reading
    if not found:
        raise Missing(NOTHING_EARLIER)
    return found


def over(seconds: int, readings: list[Point]) -> Point:
    """Return the oldest reading of the last `seconds`, else the newest before them."""
    return next((point for point in reversed(readings) if point.age <= seconds), readings[0])
