"""Samples the SM clocks of all GPUs while something else loads them."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pynvml as nvml

from volta_doctor.facts.nvml import value
from volta_doctor.facts.nvml.calls import attempt

_EVERY_S = 0.5


class Sample(NamedTuple):
    """SM clocks in MHz by NVML index (None where NVML does not tell) at a monotonic time."""

    time: float
    mhz: list[int | None]


@contextlib.contextmanager
def sampled() -> Iterator[list[Sample]]:
    """Add to the list that this gives, until the block ends."""
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    samples: list[Sample] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(_EVERY_S):
            now = time.monotonic()
            clocks = [attempt(nvml.nvmlDeviceGetClockInfo, g, nvml.NVML_CLOCK_SM) for g in gpus]
            samples.append(Sample(now, [value(clock) for clock in clocks]))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        nvml.nvmlShutdown()


def means(samples: list[Sample], since: float, until: float) -> list[float | None]:
    """Return each GPU's mean in that time, None where there is no sample of it."""
    found: list[float | None] = []
    chosen = [sample.mhz for sample in samples if since <= sample.time <= until]
    for clocks in zip(*chosen, strict=True):
        seen = [clock for clock in clocks if clock is not None]
        found.append(round(sum(seen) / len(seen), 1) if seen else None)
    return found
