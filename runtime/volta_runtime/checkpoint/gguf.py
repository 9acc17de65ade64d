"""GGUF: the metadata and the tensor table at the head of a file, of one in several parts too.

Layout (ggml, docs/gguf.md): magic, u32 version, u64 tensors, u64 pairs; the pairs: a string for the
key, a u32 for the type, the value; then for each tensor its name, u32 dimensions, u64 for each,
fastest first, u32 type, u64 offset from the data's begin; the data, where each tensor is padded to
the alignment. Strings are a u64 length and UTF-8; an array is the type of its elements, a u64 count
and the elements. All numbers are little-endian. What is refused here, llama.cpp refuses too.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from volta_runtime.checkpoint.bytestream import ByteStream
from volta_runtime.checkpoint.faults import Fault, few
from volta_runtime.checkpoint.files import lfs_fault, looks_like, opened, unread
from volta_runtime.checkpoint.tensors import TensorInfo

# By ggml's number: its name, weights in a block, bytes of a block (ggml.c, type_traits).
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}  # fmt: skip

# Of a value, by its type: uint8, int8, uint16, int16, uint32, int32, float32, bool, and uint64,
# int64, float64.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9

_CHECK = "gguf-header"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
# Bounds on what a head costs, which is some 40 bytes for each element of an array that is kept. The
# longest head known has 20 MB (a vocabulary of 2^18 words), some 60 pairs and 2,000 tensors.
_HEAD = 1 << 26
_PAIRS, _TENSORS, _DIMENSIONS = 1 << 10, 1 << 16, 4
_NAME, _TEXT = 1 << 16, 1 << 22  # bytes of a name, and of a text that is kept, as a chat template
_KEPT = 1024  # elements of an array that is kept: one for each layer
_MOST = 8  # tensors that are named of one file
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf")


@dataclass(frozen=True)
class LongArray:
    """An array of the metadata that is not kept: how many elements it has."""

    count: int


@dataclass(frozen=True)
class Gguf:
    """What the head of a GGUF file tells, or the heads of all its parts.

    metadata: the first part's. tensors: by name, of all parts, those that are soundly described.
    files: the parts that are there.
    """

    files: tuple[Path, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


class _Entry(NamedTuple):
    """A tensor as the table describes it; shape is the file's, fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def part_names(name: str) -> list[str]:
    """The names of all parts of a file, by that of one of them."""
    match = _PART.fullmatch(name)
    total = int(match["total"]) if match else 0
    if not match or not total:
        return [name]
    return [f"{match['stem']}-{n:05}-of-{total:05}.gguf" for n in range(1, total + 1)]


def read_parts(file: Path, names: Collection[str]) -> Gguf:
    """Read the heads of all parts of a model, by one of them; names: what its directory has."""
    parts = part_names(file.name)
    missing = [name for name in parts if name not in names]
    read = [read_gguf(file.parent / name) for name in parts if name in names]
    tensors: dict[str, TensorInfo] = {}
    faults = [fault for part in read for fault in part.faults]
    for part in read:
        if twice := sorted(tensors.keys() & part.tensors.keys()):
            more = f", as are {len(twice) - 1} more" if len(twice) > 1 else ""
            words = f"it is in {tensors[twice[0]].file.name} too{more}"
            faults.append(_fault(part.files[0], words, "in one part", "in two", twice[0]))
        tensors |= part.tensors
    if missing:
        words = f"{len(missing)} of {len(parts)} parts are missing: {few(missing)}"
        faults.append(_fault(file, words, f"{len(parts)} files", f"{len(read)} of them"))
    metadata = read[0].metadata if read and parts[0] in names else {}
    if not faults:
        faults += _split_faults(file, len(parts), metadata, tensors)
    files = tuple(path for part in read for path in part.files)
    return Gguf(files, metadata, tensors, tuple(faults))


def read_gguf(file: Path) -> Gguf:
    """Read one file's head; what is wrong with it becomes a fault, nothing raises."""
    metadata: dict[str, Any] = {}
    entries: list[_Entry] = []
    try:
        with opened(file) as (raw, size):
            start = raw.read(1024)
            raw.seek(0)
            if pointer := lfs_fault(file, start, size):
                return Gguf((file,), faults=(pointer,))
            stream = ByteStream(raw, size, _HEAD)
            faults = _read_head(file, stream, metadata, entries)
            position = stream.position
    except OSError as error:
        return Gguf((file,), faults=(unread(_CHECK, file, error),))
    if faults:
        return Gguf((file,), metadata, faults=tuple(faults))
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        words = f"general.alignment is {alignment!r}"
        faults = [_fault(file, words, "a power of two", str(alignment))]
        return Gguf((file,), metadata, faults=tuple(faults))
    begin = -(-position // alignment) * alignment
    tensors, faults = _parse(file, entries, begin, alignment, size)
    return Gguf((file,), metadata, tensors, tuple(faults))


def _fault(
    file: Path, message: str, expected: str = "", found: str = "", tensor: str = ""
) -> Fault:
    return Fault(_CHECK, message, file, tensor, expected, found)


def _read_head(
    file: Path, stream: ByteStream, metadata: dict[str, Any], entries: list[_Entry]
) -> list[Fault]:
    """Read the pairs and the table, as far as they are sound."""
    try:
        magic = stream.take(4)
        if magic != _MAGIC:
            raise EOFError
    except EOFError:
        start = stream.start
        seems = looks_like(start) or (repr(start[:4])[1:] if start else "nothing")
        return [_fault(file, "no GGUF file, or a part of one", "GGUF", seems)]
    try:
        version, count, pairs = stream.numbers("IQQ")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            words = f"GGUF version {version}" + (": of a big-endian machine" if swapped else "")
            return [_fault(file, words, " or ".join(map(str, _VERSIONS)), str(version))]
        _bounded("pairs", pairs, _PAIRS)
        _bounded("tensors", count, _TENSORS)
        for _ in range(pairs):
            key = stream.text(_NAME)
            value = _value(stream, stream.number("I"))
            if key in metadata:
                return [_fault(file, f"the metadata has {key} twice", "once", "twice")]
            metadata[key] = value
    except (EOFError, ValueError) as error:
        return [_fault(file, f"the metadata is damaged or cut off ({error})")]
    try:
        for _ in range(count):
            name, dimensions = stream.text(_NAME), stream.number("I")
            _bounded(f"dimensions of {name}", dimensions, _DIMENSIONS)
            *shape, kind, offset = stream.numbers("Q" * dimensions + "IQ")
            entries.append(_Entry(name, tuple(shape), kind, offset))
    except (EOFError, ValueError) as error:
        words = f"the table of {count} tensors is damaged or cut off after {len(entries)} ({error})"
        return [_fault(file, words)]
    return []


def _bounded(what: str, number: int, most: int) -> None:
    if number > most:
        raise ValueError(f"{number:,} {what}, where there can be up to {most:,}")


def _value(stream: ByteStream, kind: int) -> Any:
    if kind == _STRING:
        return stream.text(_TEXT)
    if kind in _NUMBERS:
        return stream.number(_NUMBERS[kind])
    if kind != _ARRAY:
        raise ValueError(f"a value of type {kind}")
    kind, count = stream.numbers("IQ")
    if kind == _STRING:
        if count <= _KEPT:
            return [stream.text(_TEXT) for _ in range(count)]
        stream.skip_texts(count)
        return LongArray(count)
    if kind not in _NUMBERS:  # an array of arrays is none that llama.cpp reads
        raise ValueError(f"an array of type {kind}")
    if count <= _KEPT:
        return list(stream.numbers(_NUMBERS[kind] * count))
    stream.skip(count * stream.width(_NUMBERS[kind]))
    return LongArray(count)


def _parse(
    file: Path, entries: list[_Entry], begin: int, alignment: int, size: int
) -> tuple[dict[str, TensorInfo], list[Fault]]:
    """The tensors that are soundly described, and what is wrong with the table."""
    tensors: dict[str, TensorInfo] = {}
    faults: list[Fault] = []
    position, end, cut = 0, begin, []
    for entry in entries:
        found = list(_entry_faults(file, entry))
        if entry.name in tensors:
            found.append(_fault(file, "the name occurs twice", "once", "twice", entry.name))
        if found:
            faults += found
            continue
        kind, block, width = TYPES[entry.kind]
        held = math.prod(entry.shape) // block * width
        if entry.offset != position:
            what = "a gap" if entry.offset > position else "an overlap"
            words = (
                f"its data begins at {entry.offset:,} of the data, that before it ends, padded to"
            )
            words += f" {alignment} bytes, at {position:,}: {what}"
            sides = f"byte {position:,}", f"byte {entry.offset:,}"
            if not faults:  # else what the unsound ones hold is not known
                faults.append(_fault(file, words, *sides, entry.name))
        position = entry.offset + -(-held // alignment) * alignment
        first = begin + entry.offset
        end = max(end, first + held)
        if first + held > size:
            cut.append(entry.name)
        shape = entry.shape[::-1]
        tensors[entry.name] = TensorInfo(entry.name, kind, shape, file, (first, first + held))
    if len(faults) > _MOST:
        more = f"{len(faults) - _MOST} more tensors have such faults"
        faults = [*faults[:_MOST], _fault(file, more)]
    if cut:
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        words = f"truncated: the data of {cut[0]}{more} lies beyond the file's end"
        faults.append(_fault(file, words, f"{end:,} bytes", f"{size:,} bytes"))
    elif not faults and size > (whole := begin + position) and entries:
        words = f"{size - whole:,} bytes follow the data of the last tensor"
        sides = f"{whole:,} bytes", f"{size:,} bytes"
        faults.append(Fault(_CHECK, words, file, "", *sides, level="warn"))
    return tensors, faults


def _entry_faults(file: Path, entry: _Entry) -> Iterator[Fault]:
    if not entry.name or not entry.name.isprintable():
        name = repr(entry.name[:80])
        yield _fault(file, "a tensor's name is empty or has control characters", "a name", name)
    if entry.kind not in TYPES:
        known = ", ".join(map(str, TYPES))
        words = f"unknown type {entry.kind} of ggml"
        yield _fault(file, words, known, str(entry.kind), entry.name)
        return
    kind, block, _ = TYPES[entry.kind]
    if math.prod(entry.shape) >= 1 << 63:
        words = f"its shape {list(entry.shape)} has more weights than 63 bits count"
        yield _fault(file, words, "fewer", str(list(entry.shape)), entry.name)
    elif (entry.shape[0] if entry.shape else 1) % block:
        words = f"its rows of {entry.shape[0]} weights are no whole blocks of {kind}"
        sides = f"a multiple of {block}", str(entry.shape[0] if entry.shape else 1)
        yield _fault(file, words, *sides, entry.name)


def _split_faults(
    file: Path, parts: int, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> Iterator[Fault]:
    """What the first part says of the others."""
    count, total = metadata.get("split.count", 1), metadata.get("split.tensors.count")
    if count not in (0, 1, parts) or (parts > 1 and count != parts):
        words = f"split.count says {count} parts, the file's name {parts}"
        yield _fault(file, words, f"{count} files", f"{parts} files")
    elif parts > 1 and type(total) is int and total != len(tensors):
        words = f"split.tensors.count says {total} tensors, the parts have {len(tensors)}"
        yield _fault(file, words, f"{total} tensors", f"{len(tensors)} tensors")
