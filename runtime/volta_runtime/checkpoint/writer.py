"""Writes a safetensors file tensor by tensor; what is not being written is not held in memory."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from volta_runtime.checkpoint.safetensors import DTYPE_BITS, tensor_bytes


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
