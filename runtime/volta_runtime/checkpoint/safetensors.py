"""The safetensors container: header reading with validation, and a writer that streams.

Layout (https://huggingface.co/docs/safetensors): u64 little-endian header length, that many bytes
of JSON mapping each tensor to dtype, shape and [begin, end) offsets counted from the header's end,
then the data without gaps. The library by that name is not used here because its raw interface
changed between 0.5 and 0.8, numpy has no E4M3, and the doctor must read headers without either.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from volta_runtime.checkpoint.errors import CheckpointError

# Bits per element, by the format's own names.
DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

# The reference implementation's limit.
MAX_HEADER_BYTES = 100_000_000

_LFS_MAGIC = b"version https://git-lfs"
_AGAIN = "copy or download the file again"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its header describes it.

    dtype is the format's name ("F8_E4M3"); offsets are the [begin, end) bytes within `file`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offsets: tuple[int, int]


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Size of a tensor's data in bytes."""
    return (math.prod(shape) * DTYPE_BITS[dtype] + 7) // 8


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Read and validate the header; the tensors' data is not read.

    Raises CheckpointError naming the file when it is empty, truncated, a Git LFS pointer, or when
    the header contradicts itself or the file's size.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(64)
            if not start:
                raise CheckpointError(f"{file}: the file is empty; {_AGAIN}")
            if start.startswith(_LFS_MAGIC):
                raise CheckpointError(
                    f"{file}: this is a Git LFS pointer of {size} bytes, not the tensors;"
                    " run `git lfs pull` in the checkpoint's repository or download the file itself"
                )
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(
                    f"{file}: the header needs {8 + length} bytes and the file has {size}:"
                    f" truncated, or not a safetensors file; {_AGAIN}"
                )
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{file}: header of {length} bytes, more than the format's {MAX_HEADER_BYTES}:"
                    f" not a safetensors file; {_AGAIN}"
                )
            stream.seek(8)
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot read: {error.strerror}") from error
    return _parse_header(file, raw, size)


def _parse_header(file: Path, raw: bytes, size: int) -> dict[str, TensorInfo]:
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: the header is not sound JSON ({error}): not a safetensors file,"
            f" or damaged; {_AGAIN}"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: the header is not a JSON object; {_AGAIN}")
    header.pop("__metadata__", None)
    data_start = 8 + len(raw)
    tensors = {name: _parse_entry(file, name, entry, data_start) for name, entry in header.items()}
    position = data_start
    for info in sorted(tensors.values(), key=lambda info: info.offsets):
        begin, end = info.offsets
        if begin != position:
            raise CheckpointError(
                f"{file}: tensor {info.name} begins at byte {begin}, expected {position}:"
                f" the data has a gap or an overlap; {_AGAIN}"
            )
        if end > size:
            raise CheckpointError(
                f"{file}: tensor {info.name} ends at byte {end} but the file has {size}:"
                f" truncated; {_AGAIN}"
            )
        position = end
    if position != size:
        raise CheckpointError(
            f"{file}: the header describes {position} bytes but the file has {size}; {_AGAIN}"
        )
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name occurs twice")
    return names


def _parse_entry(file: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise CheckpointError(
            f"{file}: tensor {name} lacks a sound dtype, shape or data_offsets: {entry}; {_AGAIN}"
        )
    if dtype not in DTYPE_BITS:
        raise CheckpointError(
            f"{file}: tensor {name} has unknown dtype {dtype!r}; known: {', '.join(DTYPE_BITS)}"
        )
    expected = tensor_bytes(dtype, shape)
    if end - begin != expected:
        raise CheckpointError(
            f"{file}: tensor {name} of {dtype} {list(shape)} needs {expected} bytes"
            f" but its offsets hold {end - begin}; {_AGAIN}"
        )
    return TensorInfo(name, dtype, shape, file, (data_start + begin, data_start + end))


class SafetensorsWriter:
    """Writes tensors in any order to a file whose layout is fixed beforehand.

    The whole file is allocated on entry, so a full disk shows (OSError) before any work is done.
    Wider dtypes come first, which keeps every tensor aligned to its element.
    """

    def __init__(self, file: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Lay out the file; tensors maps each name to (dtype, shape)."""
        order = sorted(tensors, key=lambda name: (-DTYPE_BITS[tensors[name][0]], name))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._spans: dict[str, tuple[int, int]] = {}
        position = 0
        for name in order:
            dtype, shape = tensors[name]
            end = position + tensor_bytes(dtype, shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
            self._spans[name] = (position, end)
            position = end
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        self._file = file
        self._head = len(raw).to_bytes(8, "little") + raw
        self._size = len(self._head) + position

    def __enter__(self) -> "SafetensorsWriter":
        self._stream = self._file.open("wb")
        try:
            os.posix_fallocate(self._stream.fileno(), 0, self._size)
            self._stream.write(self._head)
        except BaseException:
            self._stream.close()
            raise
        return self

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Place one tensor's bytes (C order, little-endian)."""
        begin, end = self._spans.pop(name)
        if memoryview(data).nbytes != end - begin:
            raise ValueError(
                f"{name}: {memoryview(data).nbytes} bytes given, {end - begin} planned"
            )
        self._stream.seek(len(self._head) + begin)
        self._stream.write(data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        if error is None and self._spans:
            raise ValueError(f"planned but never written: {', '.join(self._spans)}")
