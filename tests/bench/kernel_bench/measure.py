"""How long calls take on a device, and what the device can do at best."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Protocol

import torch

from volta_runtime.ops.native import ACTIVATION

Call = Callable[[], object]

_CACHES = 4  # times the L2 cache that rotated memory takes: little of it is found there again
_MAX_COPIES = 128
_MIN_CALLS = 8  # in a graph, so that its own start counts little
_REPLAYS = 7
# Bytes copied and the side of the square product, which tell what a device can do.
_LIMITS = {"cuda": (1 << 30, 8192), "cpu": (1 << 28, 1024)}


@dataclass(frozen=True)
class Took:
    """Microseconds of a call: of the best and of the median run."""

    best: float
    median: float


@dataclass(frozen=True)
class Limits:
    """What a device can do: bytes read and written a second, FLOP a second, and its least time.

    floor_us: of a kernel that has nothing to do, among others in a graph.
    """

    copy: float
    matmul: float
    floor_us: float


@dataclass(frozen=True)
class Row:
    """One kernel at one shape. m: rows of the input; bytes: read and written at least.

    torch_us: what torch takes for the same in the device's activation dtype, if it was measured.
    """

    device: str
    kernel: str
    model: str
    name: str
    shape: str
    m: int
    format: str
    bytes: int
    flops: int
    us: float
    median_us: float
    torch_us: float | None = None

    def figures(self, limits: Limits) -> dict[str, object]:
        """The row with its rates, and the fraction of each limit that these are."""
        rate, flops = self.bytes / self.us * 1e6, self.flops / self.us * 1e6
        of_copy, of_matmul = rate / limits.copy, flops / limits.matmul
        return asdict(self) | {
            "gb_s": rate / 1e9,
            "of_copy": of_copy,
            "tflop_s": flops / 1e12,
            "of_matmul": of_matmul,
            "of_limit": max(of_copy, of_matmul),
        }


class Timer(Protocol):
    """Measures calls on its device."""

    device: torch.device

    def copies(self, nbytes: int) -> int:
        """How many copies of nbytes to rotate, so that none is still in a cache when read."""

    def time(self, calls: Sequence[Call]) -> Took:
        """Time of one of the calls, which are made one after another, each on its own memory."""


class WallTimer:
    """Of the CPU: as many copies as the caller makes, by the clock on the wall."""

    device = torch.device("cpu")

    def __init__(self, repeats: int = 20) -> None:
        self._repeats = repeats

    def copies(self, nbytes: int) -> int:
        return 1

    def time(self, calls: Sequence[Call]) -> Took:
        calls[0]()
        times = []
        for _ in range(self._repeats):
            start = time.perf_counter()
            for call in calls:
                call()
            times.append((time.perf_counter() - start) * 1e6 / len(calls))
        return Took(min(times), statistics.median(times))


class GraphTimer:
    """Of a GPU: calls in one captured graph, so that Python's time is none of theirs."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream()
        self._rotated = _CACHES * torch.cuda.get_device_properties().L2_cache_size
        # Its memory serves all later graphs; of a graph of its own each would be allocated anew.
        self._pool = None
        self._first = self._capture([lambda: torch.zeros(1, device=self.device).neg()])
        self._pool = self._first.pool()

    def copies(self, nbytes: int) -> int:
        return max(1, min(_MAX_COPIES, math.ceil(self._rotated / nbytes)))

    def time(self, calls: Sequence[Call]) -> Took:
        calls = list(calls) * math.ceil(_MIN_CALLS / len(calls))
        graph = self._capture(calls)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
        with torch.cuda.stream(self._stream):
            graph.replay()
            events[0].record()
            for event in events[1:]:
                graph.replay()
                event.record()
        torch.cuda.synchronize()
        times = [start.elapsed_time(end) * 1e3 / len(calls) for start, end in pairwise(events)]
        return Took(min(times), statistics.median(times))

    def _capture(self, calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
        """Not by torch.cuda.graph, which empties torch's caches every time."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            calls[0]()  # what libraries do only once must not be captured
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool)
            try:
                for call in calls:
                    call()
            finally:  # or nothing else could be measured after a call that failed
                graph.capture_end()
        return graph


def limits(timer: Timer) -> Limits:
    """Measure what the timer's device can do."""
    nbytes, side = _LIMITS[timer.device.type]
    # Products first: they bring the clocks to where they stay.
    a = torch.randn(side, side, device=timer.device, dtype=ACTIVATION[timer.device.type])
    product = torch.empty_like(a)
    matmul = timer.time([lambda: torch.mm(a, a, out=product)])
    # Not by a memcpy: in a captured graph that may run on a copy engine, which is slower.
    source = torch.zeros(nbytes // 4, device=timer.device)
    target = torch.empty_like(source)
    copy = timer.time([lambda: torch.neg(source, out=target)])
    one = torch.zeros(1, device=timer.device)
    floor = timer.time([lambda: torch.neg(one, out=one)] * _MAX_COPIES)
    return Limits(2 * source.nbytes / copy.best * 1e6, 2 * side**3 / matmul.best * 1e6, floor.best)
