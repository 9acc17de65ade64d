"""Makes GGUF files for tests, sound or not, byte by byte: the data of tensors is zeros."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# By Python's type: the number of the value's type, and its code.
_KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


class Tensor(NamedTuple):
    """kind: ggml's number; shape: as in the file, fastest first; bytes: of its data."""

    kind: int
    shape: Sequence[int]
    bytes: int
    offset: int | None = None  # None: behind the one before


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(held: Any) -> bytes:
    """A value behind its type; bytes are taken as they are, the type included."""
    if isinstance(held, bytes):
        return held
    if isinstance(held, str):
        return struct.pack("<I", 8) + text(held)
    if isinstance(held, list):
        kind = struct.unpack("<I", value(held[0])[:4])[0] if held else 4
        items = b"".join(value(item)[4:] for item in held)
        return struct.pack("<IIQ", 9, kind, len(held)) + items
    kind, code = _KINDS[type(held)]
    return struct.pack(f"<I{code}", kind, held)


def gguf(
    pairs: Mapping[str, Any],
    tensors: Mapping[str, Tensor] = {},
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    head += b"".join(text(key) + value(held) for key, held in pairs.items())
    position = 0
    for name, tensor in tensors.items():
        offset = position if tensor.offset is None else tensor.offset
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += text(name) + shape + struct.pack("<IQ", tensor.kind, offset)
        position = offset + -(-tensor.bytes // alignment) * alignment
    if not tensors:
        return head
    # A tensor that claims to lie far away does not make the file so large.
    return head + bytes(-len(head) % alignment) + bytes(min(position, 1 << 16))
