"""The header of a safetensors file, read with all its faults.

Layout (https://huggingface.co/docs/safetensors): u64 little-endian header length, that many bytes
of JSON mapping each tensor to dtype, shape and [begin, end) offsets counted from the header's end,
then the data without gaps. The library by that name is not used here because it stops at the first
fault and names no tensor, and the doctor must read headers that it refuses.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.files import lfs_fault, looks_like, opened, unread
from volta_runtime.checkpoint.tensors import TensorInfo

# Bits per element, by the format's own names.
DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

# The reference implementation's limit.
MAX_HEADER_BYTES = 100_000_000

_CHECK = "st-header"
_MOST = 8  # tensors that are named of one file
_COUNTED = 10_000  # faults beyond these
_SLOW_BYTES = 16 << 20  # of a header that is worth a second look; one of 60,000 tensors has 8 MB
# The decoder takes some 250 bytes for each name; an entry has four colons. 384 experts in
# 60 layers, of three projections with four tensors each, are 276,480 in one file.
_TENSORS, _COLONS = 300_000, 4
_ENTRY_BYTES = 1024  # of one tensor's JSON; a shape has few dimensions
_SPACE = b" \t\r\n"


class Header(NamedTuple):
    """What a file's header tells.

    tensors: those that are soundly described. unsound: the names of the others. faults: what is
    wrong with the file, of many alike the first few.
    """

    tensors: dict[str, TensorInfo]
    unsound: frozenset[str]
    faults: tuple[Fault, ...]


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """A tensor as a header describes it; the reference ignores further keys too."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)
_metadata = msgspec.json.Decoder(dict[str, str] | None)


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Size of a tensor's data in bytes."""
    return (math.prod(shape) * DTYPE_BITS[dtype] + 7) // 8


def read_header(file: Path) -> Header:
    """Read a header and hold it against itself and the file's size; no data is read, none raises.

    Memory is a few times the header's length, whatever it claims, and that is at most the file's;
    names are as many as a model may have.
    """
    raw, size, fault = _read(file)
    if fault:
        return Header({}, frozenset(), (fault,))
    if raw.count(b":") > _COLONS * _TENSORS:
        words = f"the header has more fields than {_TENSORS:,} tensors have: it is none of a model"
        limit = f"up to {_TENSORS:,} tensors in a file"
        fault = _fault(file, words, limit, f"{raw.count(b':'):,} fields")
        return Header({}, frozenset(), (fault,))
    try:
        entries = _entries.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        kind = "a JSON object" if raw[:1] == b"{" else "a header of JSON"
        fault = _fault(file, f"the header is not sound JSON ({error})", kind, looks_like(raw))
        return Header({}, frozenset(), (fault,))
    faults = [
        *_twice(file, raw, entries),
        *_metadata_faults(file, entries.pop("__metadata__", b"")),
    ]
    tensors: dict[str, TensorInfo] = {}
    wrong = _first(file, _parse(file, entries, 8 + len(raw), tensors))
    faults += wrong
    if not wrong:  # else what the unsound ones hold is not known
        faults += _first(file, _layout_faults(file, tensors, 8 + len(raw), size))
    return Header(tensors, frozenset(entries.keys() - tensors.keys()), tuple(faults))


def _fault(
    file: Path, message: str, expected: str = "", found: str = "", tensor: str = ""
) -> Fault:
    return Fault(_CHECK, message, file, tensor, expected, found)


def _first(file: Path, faults: Iterator[Fault]) -> list[Fault]:
    """The first few, and how many more there are."""
    kept = list(islice(faults, _MOST))
    more = sum(1 for _ in islice(faults, _COUNTED))
    words = f"{more:,} {'and ' if more == _COUNTED else ''}more tensors have such faults"
    return [*kept, _fault(file, words)] if more else kept


def _read(file: Path) -> tuple[bytes, int, Fault | None]:
    """The header's JSON and the file's size, or why there is none."""
    try:
        with opened(file) as (stream, size):
            start = stream.read(1024)
            length = int.from_bytes(start[:8], "little")
            if pointer := lfs_fault(file, start, size):
                return b"", size, pointer
            if not start:
                return b"", size, _fault(file, "the file is empty", "a safetensors file", "0 bytes")
            # A length may have any bytes: 640 begins as a pickle does.
            if start[8:9] != b"{" and (other := looks_like(start)):
                words = f"not a safetensors file: it begins as {other}"
                return b"", size, _fault(file, words, "a safetensors file", other)
            if length > MAX_HEADER_BYTES:
                words = "not a safetensors file, or damaged: its first 8 bytes tell a longer header"
                limit = f"a header of up to {MAX_HEADER_BYTES:,} bytes"
                return b"", size, _fault(file, words, limit, f"{length:,} bytes")
            if size < 8 + length:
                words = f"truncated in its header, which needs {8 + length:,} bytes of the file"
                needs, has = f"more than {8 + length:,} bytes", f"{size:,} bytes"
                return b"", size, _fault(file, words, needs, has)
            stream.seek(8)
            raw = stream.read(length)
    except OSError as error:
        return b"", 0, unread(_CHECK, file, error)
    if raw[:1] != b"{":
        words = "not a safetensors file: no JSON object follows its first 8 bytes"
        return raw, size, _fault(file, words, "{", repr(raw[:1])[1:])
    return raw, size, None


def _twice(file: Path, raw: bytes, entries: dict[str, msgspec.Raw]) -> list[Fault]:
    """Names that occur twice, of which the decoder keeps the last entry only.

    Without white space a header is as long as its entries together, unless it has more of them or
    names with escapes; only then it is worth a second, slower look.
    """
    names, held = "".join(entries).encode(), b"".join(entries.values())
    length = sum(len(part.translate(None, _SPACE)) for part in (names, held))
    marks = 4 * len(entries) - 1 if entries else 0  # quotes, colon and comma
    if len(raw.translate(None, _SPACE)) == 2 + length + marks:
        return []
    if len(raw) > _SLOW_BYTES:  # names with escapes are not told from such that occur twice
        return [] if b"\\" in raw else [_fault(file, "a name occurs twice in the header")]
    pairs: list[tuple[str, Any]] = []
    try:
        # The last call is that of the outermost object.
        json.loads(raw, object_pairs_hook=lambda found: pairs.__setitem__(slice(None), found))
    except (ValueError, RecursionError):
        return [_fault(file, "the header nests too deep")]
    again = (name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    words = "the name occurs twice in the header"
    return _first(file, (_fault(file, words, "once", "twice", name) for name in again))


def _metadata_faults(file: Path, raw: msgspec.Raw | bytes) -> Iterator[Fault]:
    try:
        _metadata.decode(raw or b"null")
    except (msgspec.DecodeError, RecursionError) as error:
        yield _fault(file, f"__metadata__ is no object of strings ({error})")


def _parse(
    file: Path, entries: dict[str, msgspec.Raw], start: int, tensors: dict[str, TensorInfo]
) -> Iterator[Fault]:
    """Add the tensors that are soundly described; tell what is wrong with the others."""
    for name, raw in entries.items():
        try:
            if len(raw) > _ENTRY_BYTES:
                raise ValueError(f"{len(raw):,} bytes of JSON")
            entry = _entry.decode(raw)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            words = f"it lacks a sound dtype, shape or data_offsets: {_unsound(raw) or error}"
            yield _fault(file, words, "dtype, shape and data_offsets", "another", tensor=name)
            continue
        begin, end = entry.data_offsets
        if (bits := DTYPE_BITS.get(entry.dtype)) is None:
            words, known = f"unknown dtype {entry.dtype!r}", ", ".join(DTYPE_BITS)
            yield _fault(file, words, known, entry.dtype, name)
            continue
        needed = math.prod(entry.shape) * bits
        if needed != 8 * (end - begin):
            what = f"{entry.dtype} {list(entry.shape)}"
            needs = f"{needed // 8:,} bytes" if needed < 1 << 67 else "more than 2^64 bytes"
            if needed % 8:
                needs = f"{needs} and {needed % 8} bits"
            held = f"{end - begin:,} bytes"
            words = f"{what} needs {needs} but its data_offsets hold {held}"
            yield _fault(file, words, needs, held, name)
            continue
        if not name.isprintable() or not name:
            words = "its name is empty or has control characters"
            yield _fault(file, words, "a name", repr(name[:80]), name)
        tensors[name] = TensorInfo(
            name, entry.dtype, entry.shape, file, (start + begin, start + end)
        )


def _unsound(raw: msgspec.Raw) -> str:
    """Which field of a tensor's entry is not as it must be, and what it is."""
    try:
        entry = json.loads(bytes(raw)) if len(raw) <= _ENTRY_BYTES else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(entry, dict):
        return "" if entry is None else f"the entry is {entry!r:.60}, no object"
    for key, count in (("shape", None), ("data_offsets", 2)):
        value = entry.get(key)
        numbers = value if isinstance(value, list) else [None]
        sound = all(type(n) is int and n >= 0 for n in numbers)
        if not sound or (count and len(numbers) != count):
            wanted = "two whole numbers" if count else "whole numbers"
            return f"{key} is {value!r:.60}, no list of {wanted} from 0"
    return "" if isinstance(entry.get("dtype"), str) else f"dtype is {entry.get('dtype')!r:.60}"


def _layout_faults(
    file: Path, tensors: dict[str, TensorInfo], start: int, size: int
) -> Iterator[Fault]:
    """Where the data does not lie end to end up to the end of the file."""
    position, cut = start, []
    for info in sorted(tensors.values(), key=lambda info: info.offsets):
        begin, end = info.offsets
        if begin != position:
            what = "a gap" if begin > position else "an overlap"
            words = (
                f"its data begins at byte {begin:,}, that before it ends at {position:,}: {what}"
            )
            yield _fault(file, words, f"byte {position:,}", f"byte {begin:,}", info.name)
        position = max(position, end)
        if end > size:
            cut.append(info.name)
    if cut:
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        words = f"truncated: the data of {cut[0]}{more} lies beyond the file's end"
        yield _fault(file, words, f"{position:,} bytes", f"{size:,} bytes")
    elif position < size:
        words = f"{size - position:,} bytes follow the data that its header tells of"
        yield _fault(file, words, f"{position:,} bytes", f"{size:,} bytes")
