"""What the scales of a checkpoint hold: the only tensors whose values a preflight reads."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from volta_runtime.checkpoint.floats import FLOATS, FloatType
from volta_runtime.checkpoint.formats import Parameter, WeightFormat
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.tensors import TensorInfo

if TYPE_CHECKING:
    from volta_runtime.checkpoint.checkpoint import Checkpoint

BUDGET = 16 << 20  # bytes that are read where not everything is
_PIECE = 16 << 10  # of a sampled tensor: a disk's seek costs more than reading so much
_RUN = 128 << 10  # read at once: bounds the memory
_GAP = 4 << 10  # read over rather than sought over
_ROLES = ("scale", "global", "columns", "activation")
_LEAST = 64  # of each tensor, so that scalars are always read


class ScaleValues(NamedTuple):
    """What was seen in one scale tensor.

    read, size: elements that were read, and that there are. low, high: the least and the greatest
    finite value among those read; least: the least above zero. nans (infinities too), zeros,
    negatives, subnormals: how many; a subnormal is one of the tensor's own dtype. E8M0 has no zero:
    writers store its least value, 2^-127, for a group of zeros, and it counts as zero here. value:
    of a scalar, its value (nan for infinity).
    """

    read: int
    size: int
    low: float | None
    high: float | None
    least: float | None
    nans: int = 0
    zeros: int = 0
    negatives: int = 0
    subnormals: int = 0
    value: float | None = None


@dataclass(frozen=True)
class Scales:
    """The scale tensors by name, with the bytes that were read and that they have in all.

    unread: by name, why a tensor or some part of it could not be read.
    """

    values: Mapping[str, ScaleValues]
    bytes_read: int
    bytes_in_all: int
    unread: Mapping[str, str]


def read_scales(checkpoint: "Checkpoint", everything: bool = False) -> Scales:
    """Read the scale tensors of all modules, as the rows of their formats name them.

    Scalars and small tensors are read whole, of large ones evenly spaced pieces, within BUDGET
    bytes; everything: all of them. A file that cannot be read is told in `unread`, nothing raises.
    """
    found = (
        (info, kind)
        for _, parameter, info in scale_tensors(checkpoint)
        if (kind := _float_type(info.dtype, parameter.dtypes))
    )
    return read_floats(found, None if everything else BUDGET)


def scale_tensors(checkpoint: "Checkpoint") -> Iterator[tuple[Module, Parameter, TensorInfo]]:
    """The tensors with scales, as the rows of their modules' formats name them."""
    roles: dict[WeightFormat, list[Parameter]] = {}
    for module in checkpoint.modules.values():
        row = module.format
        if row is None:
            continue
        if row not in roles:
            roles[row] = [part for part in row.parameters if part.role in _ROLES]
        for parameter in roles[row]:
            if info := parameter.find(module.tensors):
                yield module, parameter, info


def _float_type(dtype: str, allowed: Sequence[str]) -> FloatType | None:
    """What a dtype's bytes are: plain bytes stand for the narrow float that the row names."""
    if dtype == "U8":
        return next((FLOATS[name] for name in allowed if name.startswith("F8_")), None)
    return FLOATS.get(dtype)


def read_floats(tensors: Iterable[tuple[TensorInfo, FloatType]], budget: int | None) -> Scales:
    """Read tensors of the given types, within so many bytes; None: all of them."""
    tallies = [_Tally(info, kind) for info, kind in tensors]
    sizes = [tally.info.bytes for tally in tallies]
    share = max(sizes, default=0) if budget is None else _share(sizes, budget)
    by_file: dict[Path, list[_Tally]] = {}
    for tally in tallies:
        by_file.setdefault(tally.info.file, []).append(tally)
    unread: dict[str, str] = {}
    for file, held in by_file.items():
        held.sort(key=lambda tally: tally.info.offsets)
        unread |= _read_file(file, held, share)
    return Scales(
        {tally.info.name: tally.values() for tally in tallies},
        sum(tally.read * tally.kind.width for tally in tallies),
        sum(sizes),
        unread,
    )


def _share(sizes: Sequence[int], budget: int) -> int:
    """The most bytes of each tensor such that all fit: what small ones leave goes to large ones."""
    for place, size in enumerate(sorted(sizes)):
        share = budget // (len(sizes) - place)
        if size > share:
            return max(share, _LEAST)
        budget -= size
    return max(sizes, default=0)


class _Tally:
    """What is seen in one tensor, piece by piece."""

    __slots__ = (
        "high",
        "info",
        "kind",
        "least",
        "low",
        "nans",
        "negatives",
        "read",
        "subnormals",
        "zeros",
    )

    def __init__(self, info: TensorInfo, kind: FloatType) -> None:
        self.info = info
        self.kind = kind
        self.read = self.nans = self.zeros = self.negatives = self.subnormals = 0
        self.low = inf
        self.high = -inf
        self.least = inf

    def add(self, data: memoryview) -> None:
        kind = self.kind
        self.read += len(data) // kind.width
        for bits, count in kind.patterns(data).items():
            magnitude = bits & (kind.sign - 1)
            if magnitude >= kind.nonfinite:
                self.nans += count
                continue
            value = kind.value(bits)
            self.low = min(self.low, value)
            self.high = max(self.high, value)
            if magnitude == 0:
                self.zeros += count
                continue
            self.least = min(self.least, value) if value > 0 else self.least
            self.negatives += count if bits & kind.sign else 0
            self.subnormals += count if magnitude < kind.plain.start else 0

    def values(self) -> ScaleValues:
        count = self.info.bytes // self.kind.width
        finite = self.low <= self.high
        low, high = (self.low, self.high) if finite else (None, None)
        least = self.least if self.least < inf else None
        value = None if count != 1 or not self.read else self.low if finite else nan
        odd = (self.nans, self.zeros, self.negatives, self.subnormals)
        return ScaleValues(self.read, count, low, high, least, *odd, value)


class _Part(NamedTuple):
    """Bytes of a file that are of one tensor."""

    begin: int
    end: int
    tally: _Tally


def _parts(tally: _Tally, share: int) -> Iterator[_Part]:
    """The bytes to read of a tensor: all, or evenly spaced pieces of `share` bytes together."""
    begin, end = tally.info.offsets
    if end - begin <= share:
        for start in range(begin, end, _RUN):
            yield _Part(start, min(start + _RUN, end), tally)
        return
    pieces = max(share // _PIECE, 1)
    size = min(share, _PIECE) // tally.kind.width * tally.kind.width
    between = (end - begin - size) / max(pieces - 1, 1)
    first = 0 if pieces > 1 else between / 2
    for number in range(pieces):
        element = int(first + number * between) // tally.kind.width
        start = begin + element * tally.kind.width
        yield _Part(start, start + size, tally)


def _runs(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Parts that lie so near each other that they are read at once."""
    run: list[_Part] = []
    for part in parts:
        # A header that lies may name bytes twice, so a part may begin before the last one.
        near = run and run[0].begin <= part.begin <= run[-1].end + _GAP
        if run and not (near and part.end - run[0].begin <= _RUN):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


def _read_file(file: Path, tallies: Sequence[_Tally], share: int) -> dict[str, str]:
    """Read the tensors of a file, which are in its order; why some could not be, by name."""
    try:
        # A pipe in the place of a file must not hold up who asks.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return dict.fromkeys((t.info.name for t in tallies), error.strerror or str(error))
    unread: dict[str, str] = {}
    try:
        for run in _runs(part for tally in tallies for part in _parts(tally, share)):
            begin = run[0].begin
            reason = "the file ends before its end"
            try:
                data = memoryview(os.pread(descriptor, max(p.end for p in run) - begin, begin))
            except OSError as error:
                data, reason = memoryview(b""), error.strerror or str(error)
            for part in run:
                held = data[part.begin - begin : part.end - begin]
                if len(held) < part.end - part.begin:
                    unread.setdefault(part.tally.info.name, reason)
                if whole := len(held) // part.tally.kind.width * part.tally.kind.width:
                    part.tally.add(held[:whole])
    finally:
        os.close(descriptor)
    return unread
