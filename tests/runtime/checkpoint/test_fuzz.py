"""Headers that lie, by the thousand: no crash, no great allocation, always a fault."""

import json
import random
import struct
import tracemalloc

import pytest
import safetensors
from ggufs import Tensor, gguf

from volta_runtime.checkpoint.gguf import read_gguf
from volta_runtime.checkpoint.safetensors import DTYPE_BITS, read_header

COUNT = 5000  # of each of the two formats
MOST = 100 << 20  # bytes
BIG = (1 << 63, 1 << 64, (1 << 63) - 1, 1 << 40, 1 << 1000)
ROWS = (53, 59, 61, 67, 71, 73, 79, 83, 89, 97)  # of which no mutation makes another sound size


def a_header(rng):
    """The header of some modules in NVFP4, and their bytes; hardly one is like another."""
    header, position = {}, 0
    for number in rng.sample(range(200), 3):
        rows = rng.choice(ROWS)
        for word, dtype, shape, size in (
            ("weight_packed", "U8", [rows, 8], rows * 8),
            ("weight_scale", "F8_E4M3", [rows, 1], rows),
            ("weight_global_scale", "F32", [1], 4),
        ):
            offsets = [position, position + size]
            entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            header[f"model.layers.{number}.mlp.{word}"] = entry
            position += size
    return header, position


def packed(header, data, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(raw) if length is None else length
    return struct.pack("<Q", length % (1 << 64)) + raw + bytes(data)


@pytest.fixture
def put(tmp_path):
    """put(content) overwrites one file: emptied ones are flushed to the disk, which is slow."""
    file = tmp_path / "m"
    with file.open("wb") as stream:

        def put(content):
            stream.seek(0)
            stream.write(content)
            stream.truncate()
            stream.flush()
            return file

        yield put


def a_name(rng, header):
    """Of an entry that still has its three keys."""
    return rng.choice(
        [n for n, held in header.items() if isinstance(held, dict) and len(held) == 3]
    )


def other_dtype(rng, header):
    wrong = [name for name, bits in DTYPE_BITS.items() if bits not in (8, 32)]
    other = rng.choice([*wrong, "F4_E2M1", "u8", "", "\0", "F" * 900, None, 7, [], {}])
    header[a_name(rng, header)]["dtype"] = other


def other_shape(rng, header):
    other = rng.choice([0, -1, 2.5, "4", None, [[4]], 3, *BIG])
    header[a_name(rng, header)]["shape"] = rng.choice([[other, 4], [4, other], other])


def many_dimensions(rng, header):
    other = [rng.choice([1 << 62, 3])] * rng.choice([2, 50, 5000])
    header[a_name(rng, header)]["shape"] = other


def other_offsets(rng, header):
    other = rng.choice([8, -1, None, "0", 1.5, [], *BIG])
    header[a_name(rng, header)]["data_offsets"] = rng.choice([[7, other], [other, 7], other])


def shifted(rng, header):
    by = rng.choice([4, 41, 1 << 40, 1 << 62])
    header[a_name(rng, header)]["data_offsets"] = [by, by + 32]


def without_a_key(rng, header):
    del header[a_name(rng, header)][rng.choice(["dtype", "shape", "data_offsets"])]


def without_a_tensor(rng, header):
    del header[a_name(rng, header)]


def no_entry(rng, header):
    header[a_name(rng, header)] = rng.choice([None, 1, "x", [], {}, [[[]]], 1e999])


def odd_name(rng, header):
    header[rng.choice(["\x1b[2J", "", "a\nb", "\u202e", "\0"])] = header.pop(a_name(rng, header))


def odd_metadata(rng, header):
    header["__metadata__"] = rng.choice([1, [], {"a": 1}, {"a": None}, "x"])


FIELDS = (
    other_dtype, other_shape, other_offsets, shifted, many_dimensions, without_a_key,
    without_a_tensor, no_entry, odd_name, odd_metadata,
)  # fmt: skip


def whole(rng, header, size):
    """Mutations of the file rather than of a field; bytes."""
    raw = json.dumps(header).encode()
    text = rng.choice(
        [
            raw[: rng.randrange(len(raw))],
            raw.replace(b"}", b"]", 1),
            raw[:-1] + b"," + raw[1:],  # every name twice
            raw[:-1] + b',"x":' + b'{"a":' * 10_000,
            raw[:-1] + b',"x":' + b"[" * 10_000,
            raw[:-1] + b',"a":' + b"9" * 5000 + b"}",
            bytes(rng.randrange(256) for _ in range(200)),
            raw.replace(b"model", b"mod\xffel"),
            raw.replace(b"[", b"[NaN,", 1),
        ]
    )
    if rng.random() < 0.5:
        return packed(text, size)
    length = rng.choice([0, 7, len(raw) - 1, len(raw) + size + 1, 100_000_001, -1, *BIG[:4]])
    sound = packed(header, size)
    return rng.choice(
        [
            packed(header, size, length),
            sound[: rng.randrange(len(sound))],
            packed(header, rng.choice([0, size - 1, size + 1, 4096])),
        ]
    )


def test_safetensors_that_lie(put):
    rng = random.Random(6)
    assert read_header(put(packed(*a_header(rng)))).faults == ()
    seen = set()
    tracemalloc.start()
    for number in range(COUNT):
        header, size = a_header(rng)
        if number % 3:
            for _ in range(rng.choice([1, 1, 1, 2, 5])):
                rng.choice(FIELDS)(rng, header)
            content = packed(header, size)
        else:
            content = whole(rng, header, size)
        seen.add(content)
        assert read_header(put(content)).faults, content
    assert tracemalloc.get_traced_memory()[1] < MOST
    tracemalloc.stop()
    assert len(seen) > 0.99 * COUNT


def test_what_the_reference_refuses_is_refused(put):
    """One byte of a sound file is another: what it means is for the format's library to say."""
    rng = random.Random(7)
    header, size = a_header(rng)
    sound = packed(header, size)
    refused = 0
    for _ in range(3000):
        content = bytearray(sound)
        content[rng.randrange(len(sound) - size)] = rng.randrange(256)
        file = put(content)
        try:
            with safetensors.safe_open(file, "np"):
                continue
        except safetensors.SafetensorError:
            refused += 1
        assert read_header(file).faults, bytes(content)
    assert refused > 1000


PAIRS = {"general.architecture": "llama", "a": 1, "b": 1.5, "c": [1, 2], "d": ["x", "y"]}
TENSORS = {"x": Tensor(12, (256, 2), 288), "y": Tensor(0, (8,), 32), "z": Tensor(1, (4, 4), 32)}
KV = {
    "a text": lambda n: struct.pack("<IQ", 8, n),
    "an array of texts": lambda n: struct.pack("<IIQ", 9, 8, n),
    "an array of numbers": lambda n: struct.pack("<IIQ", 9, 10, n),
    "an array of arrays": lambda n: struct.pack("<IIQ", 9, 9, n % (1 << 64)),
    "a type": lambda n: struct.pack("<I", 13 + n % 1000),
}


def lying_gguf(rng):
    pairs = PAIRS | {"a": rng.randrange(1 << 30), "b": rng.random()}
    sound = gguf(pairs, TENSORS)
    big = rng.choice([n for n in BIG if n < 1 << 64] + [5000, 1 << 20])
    tensors = dict(TENSORS)
    name = rng.choice(list(tensors))
    kind, shape, size, _ = tensors[name]
    case = rng.randrange(8)
    if case == 0:
        return sound[: rng.randrange(len(sound) - 32)]
    if case == 1:  # pairs or tensors
        at = rng.choice([8, 16])
        return sound[:at] + struct.pack("<Q", big) + sound[at + 8 :]
    if case == 2:  # the length of the first key
        return sound[:24] + struct.pack("<Q", big) + sound[32:]
    if case == 3:
        return gguf(pairs | {"e": rng.choice(list(KV.values()))(big)}, tensors)
    if case == 4:
        tensors[name] = Tensor(rng.choice([4, 5, 31, 36, 42, 99, 1 << 31]), shape, size)
    if case == 5:
        tensors[name] = Tensor(kind, rng.choice([(big, big), (1 << 62, 4), (3,) * 5, (7, 3)]), size)
    if case == 6:
        tensors[name] = Tensor(kind, shape, size, rng.choice([1, 64, big - 9999]) + 9999)
    if case == 7:
        alignment = rng.choice([0, 3, 48, 1 << 31])
        return gguf(pairs | {"general.alignment": alignment}, tensors)
    return gguf(pairs, tensors)


def test_gguf_that_lies(put):
    rng = random.Random(8)
    assert read_gguf(put(gguf(PAIRS, TENSORS))).faults == ()
    seen = set()
    tracemalloc.start()
    for _ in range(COUNT):
        content = lying_gguf(rng)
        seen.add(content)
        assert read_gguf(put(content)).faults, content
    assert tracemalloc.get_traced_memory()[1] < MOST
    tracemalloc.stop()
    assert len(seen) > 0.99 * COUNT


@pytest.mark.parametrize("flips", [1, 3])
def test_gguf_with_other_bytes_is_read_without_a_crash(put, flips):
    rng = random.Random(9)
    sound = gguf(PAIRS, TENSORS)
    for _ in range(1000):
        content = bytearray(sound)
        for _ in range(flips):
            content[rng.randrange(len(sound) - 400)] = rng.randrange(256)
        found = read_gguf(put(content))
        for info in found.tensors.values() if not found.faults else ():
            assert info.offsets[1] <= len(sound)
