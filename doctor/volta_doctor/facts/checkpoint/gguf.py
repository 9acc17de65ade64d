"""GGUF files, as far as a doctor needs them: sizes, and the metadata at their head.

Layout (ggml, docs/gguf.md): magic, u32 version, u64 tensors, u64 pairs, then the pairs: a string
for the key, a u32 for the type, the value. Strings are a u64 length and UTF-8; an array is the type
of its elements, a u64 count and the elements. All numbers are little-endian.
"""

import re
import struct
from typing import Any, BinaryIO

from volta_doctor.probe import CannotLook, Probe

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
# By type: uint8, int8, uint16, int16, uint32, int32, float32, bool, and uint64, int64, float64.
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
_LONGEST = 1 << 24  # bytes of a string, or elements of an array; vocabularies are some 2^18 words
_KEPT = 4096  # elements of an array that is worth keeping: one number for each layer


def parts(probe: Probe, path: str) -> list[str]:
    """Return the paths of all parts of a GGUF file. Raises CannotLook where one is missing."""
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path)
    names = [path]
    if match:
        names = [f"{match[1]}-{n:05}-of-{match[2]}.gguf" for n in range(1, int(match[2]) + 1)]
    for name in names:
        if not probe.exists(name):
            raise CannotLook(f"{name}: no such file")
    return names


def size(probe: Probe, path: str) -> int:
    """Return a file's size in bytes; metadata is some MB of it, or less."""
    try:
        return probe.path(path).stat().st_size
    except OSError as error:
        raise CannotLook(f"{path}: {error.strerror}") from error


def read_metadata(probe: Probe, path: str) -> dict[str, Any]:
    """Return the pairs, without long arrays. Raises CannotLook naming the file."""
    try:
        with probe.open(path) as file:
            if file.read(4) != _MAGIC:
                raise CannotLook(f"{path}: no GGUF file, or a part of one")
            version, _, pairs = struct.unpack("<IQQ", _take(file, 20))
            if version not in (2, 3):
                raise CannotLook(f"{path}: GGUF version {version}; known: 2, 3")
            return {_string(file): _value(file, _number(file, "I")) for _ in range(pairs)}
    except OSError as error:
        raise CannotLook(f"{path}: {error.strerror}") from error
    except (EOFError, ValueError, KeyError, RecursionError) as error:
        raise CannotLook(f"{path}: the metadata is damaged or cut off ({error})") from error


def shape_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of CheckpointFacts that the metadata gives."""
    kind = str(metadata.get("general.architecture", ""))
    found: dict[str, Any] = {"model_type": kind} if kind else {}
    for field, key in (
        ("num_hidden_layers", "block_count"),
        ("num_attention_heads", "attention.head_count"),
        ("head_dim", "attention.key_length"),
        ("hidden_size", "embedding_length"),
        ("max_position_embeddings", "context_length"),
        ("sliding_window", "attention.sliding_window"),
    ):
        if isinstance(value := metadata.get(f"{kind}.{key}"), int):
            found[field] = value
    layers, heads = found.get("num_hidden_layers"), found.get("num_attention_heads")
    if layers is None:
        return found
    # By layer in a hybrid model: 0 where a layer has no attention.
    by_layer = metadata.get(f"{kind}.attention.head_count_kv", heads)
    if isinstance(by_layer, int):
        by_layer = [by_layer] * layers
    if isinstance(by_layer, list):
        found["num_key_value_heads"] = max(by_layer, default=0)
        every = metadata.get(f"{kind}.full_attention_interval")
        attending = sum(number > 0 for number in by_layer)
        found["full_layers"] = layers // every if isinstance(every, int) and every else attending
        found["sliding_layers"] = 0  # which layers have a window is not said: all count as full
    if heads and "hidden_size" in found:
        found.setdefault("head_dim", found["hidden_size"] // heads)
    return found


def _take(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError("the file ends")
    return data


def _number(file: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", _take(file, struct.calcsize(f"<{code}")))[0]


def _length(file: BinaryIO) -> int:
    length = int(_number(file, "Q"))
    if length > _LONGEST:
        raise ValueError(f"a length of {length}")
    return length


def _string(file: BinaryIO) -> str:
    return _take(file, _length(file)).decode(errors="replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, _NUMBERS[kind])
    kind = _number(file, "I")
    count = _length(file)
    if kind in (_STRING, _ARRAY):
        values = [_value(file, kind) for _ in range(count)]
        return values if count <= _KEPT else None
    code = f"{count}{_NUMBERS[kind]}"
    data = _take(file, struct.calcsize(f"<{code}"))
    return list(struct.unpack(f"<{code}", data)) if count <= _KEPT else None
