"""The safetensors header: what is accepted, and one clear message for each fault."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

from volta_runtime.checkpoint.safetensors import DTYPE_BITS, read_header
from volta_runtime.checkpoint.writer import SafetensorsWriter

GOOD = {"a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}


def raw(header, data=bytes(12)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes):
    return {"a": GOOD["a"] | changes}


BIG = 1 << 63

# Each case: the file's bytes, what is said of it, and the tensor that is named.
FAULTS = {
    "empty": (b"", "the file is empty", ""),
    "shorter than the length field": (b"\x08\0\0", "truncated in its header", ""),
    "header longer than the file": (raw(GOOD)[:40], "truncated in its header, which needs", ""),
    "a header beyond the limit": (
        (100_000_001).to_bytes(8, "little") + b"{",
        "its first 8 bytes tell a longer header",
        "",
    ),
    "a length of 2^63": (BIG.to_bytes(8, "little") + b"{}", "tell a longer header", ""),
    "a zip archive": (b"PK\x03\x04" + bytes(range(60)), "begins as a zip archive", ""),
    "a web page": (b"<!DOCTYPE html><html>", "begins as a web page", ""),
    "zeros": (bytes(4096), "made room for and not filled", ""),
    "more names than models have": (
        raw(b"{" + b",".join(b'"%d":1' % number for number in range(1_200_001)) + b"}"),
        "more fields than 300,000 tensors have",
        "",
    ),
    "header not JSON": (raw(b"{nonsense}"), "not sound JSON", ""),
    "header not UTF-8": (raw(b'{"\xff": 1}'), "not sound JSON", ""),
    "header nests too deep": (raw(b'{"a":' + b"[" * 100_000), "not sound JSON", ""),
    "header not an object": (raw([1]), "no JSON object follows", ""),
    "name twice": (
        raw(
            b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' + json.dumps(GOOD).encode()[1:]
        ),
        "occurs twice",
        "a",
    ),
    "name twice, once escaped": (
        raw(
            b'{"\\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
            + json.dumps(GOOD).encode()[1:]
        ),
        "occurs twice",
        "a",
    ),
    "metadata of numbers": (raw(GOOD | {"__metadata__": {"a": 1}}), "no object of strings", ""),
    "tensor not an object": (raw({"a": 7}), "lacks a sound dtype", "a"),
    "no offsets": (raw({"a": {"dtype": "F16", "shape": [1]}}), "lacks a sound", "a"),
    "offsets of three": (raw(entry(data_offsets=[0, 12, 12])), "lacks a sound", "a"),
    "a size of text": (raw(entry(shape=["2", 3])), "lacks a sound", "a"),
    "a size of no whole number": (raw(entry(shape=[2.5, 3])), "lacks a sound", "a"),
    "negative size": (raw(entry(shape=[-2, -3])), "lacks a sound", "a"),
    "a shape without end": (raw(entry(shape=[1] * 9999)), "lacks a sound", "a"),
    "unknown dtype": (raw(entry(dtype="F3")), "unknown dtype 'F3'", "a"),
    "size and offsets disagree": (
        raw(entry(shape=[2, 4])),
        "F16 [2, 4] needs 16 bytes but its data_offsets hold 12 bytes",
        "a",
    ),
    "offsets run backwards": (raw(entry(data_offsets=[12, 0])), "needs 12 bytes but", "a"),
    "a product beyond 64 bits": (raw(entry(shape=[BIG, BIG, 4])), "more than 2^64 bytes", "a"),
    "half a byte": (
        raw({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, bytes(1)),
        "needs 1 bytes and 4 bits",
        "a",
    ),
    "control characters": (
        raw({"a\x1b[2J": GOOD["a"]}),
        "control characters",
        "a\x1b[2J",
    ),
    "gap": (raw(entry(data_offsets=[4, 16]), bytes(16)), ": a gap", "a"),
    "overlap": (
        raw(GOOD | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}}),
        ": an overlap",
        "b",
    ),
    "data truncated": (raw(GOOD, bytes(11)), "truncated: the data of a lies beyond", ""),
    "bytes left over": (raw(GOOD, bytes(13)), "1 bytes follow the data", ""),
}


@pytest.fixture
def header(tmp_path):
    def read(content):
        file = tmp_path / "model.safetensors"
        file.write_bytes(content)
        return read_header(file)

    return read


def test_a_sound_file_has_no_faults(header):
    found = header(
        raw(GOOD | {"b c": {"dtype": "I8", "shape": [], "data_offsets": [12, 13]}}, bytes(13))
    )
    assert not found.faults
    assert found.tensors.keys() == {"a", "b c"}


@pytest.mark.parametrize("length", [0x0280, 0x8B1F])
def test_a_length_that_begins_as_another_kind_of_file(tmp_path, length):
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw(json.dumps(GOOD).encode().ljust(length)))
    assert read_header(file).faults == ()


@pytest.mark.parametrize(("content", "message", "tensor"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(header, content, message, tensor):
    (fault,) = header(content).faults
    assert message in fault.message
    assert (fault.check, fault.level, fault.tensor) == ("st-header", "fail", tensor)


def test_a_pointer_of_git_lfs_is_none_of_these(header):
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 4976698672\n"
    (fault,) = header(text).faults
    assert (fault.check, fault.expected) == ("lfs-pointer", "4,976,698,672 bytes")


def test_all_faults_of_a_file_are_told_and_the_sound_tensors_kept(header):
    more = {
        "b": {"dtype": "F3", "shape": [1], "data_offsets": [12, 13]},
        "c": {"dtype": "U8", "shape": [2], "data_offsets": [13, 14]},
    }
    found = header(raw(GOOD | more, bytes(14)))
    assert [fault.tensor for fault in found.faults] == ["b", "c"]
    assert (found.tensors.keys(), found.unsound) == ({"a"}, {"b", "c"})


def test_of_many_faults_the_first_few_are_named(header):
    many = {f"t{n}": {"dtype": "F3", "shape": [], "data_offsets": [0, 0]} for n in range(100)}
    faults = header(raw(many)).faults
    assert len(faults) == 9
    assert faults[-1].message == "92 more tensors have such faults"


def test_a_missing_file_is_a_fault(tmp_path):
    (fault,) = read_header(tmp_path / "gone.safetensors").faults
    assert fault.message == "cannot be read: No such file or directory"


def test_every_dtype_of_the_library_is_known(tmp_path):
    """Its list is in the message that refuses another one."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw(entry(dtype="F3")))
    with pytest.raises(safetensors.SafetensorError) as refused:
        safetensors.safe_open(file, "np")
    named = set(re.findall(r"`(\w+)`", str(refused.value))) - {"F3"}
    assert named
    assert named <= DTYPE_BITS.keys()


def test_offsets_find_the_data_that_the_library_wrote(tmp_path):
    file = tmp_path / "model.safetensors"
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    safetensors.numpy.save_file({"x": array, "y": np.ones(5, np.uint8)}, file)
    info = read_header(file).tensors["x"]
    begin, end = info.offsets
    assert (info.dtype, info.shape) == ("F16", (2, 3))
    assert file.read_bytes()[begin:end] == array.tobytes()


def test_library_reads_what_the_writer_wrote(tmp_path):
    file = tmp_path / "model.safetensors"
    arrays = {"odd": np.arange(5, dtype=np.uint8), "wide": np.arange(3, dtype=np.float32)}
    layout = {"odd": ("U8", (5,)), "wide": ("F32", (3,))}
    with SafetensorsWriter(file, layout) as writer:
        for name, array in arrays.items():
            writer.write(name, array.data)
    for name, array in safetensors.numpy.load_file(file).items():
        np.testing.assert_array_equal(array, arrays[name])
    for info in read_header(file).tensors.values():
        assert info.offsets[0] % 4 == 0 or info.dtype == "U8"


def test_writer_refuses_wrong_sizes_and_forgotten_tensors(tmp_path):
    layout = {"a": ("F16", (4,))}
    with (
        pytest.raises(ValueError, match="7 bytes given, 8 planned"),
        SafetensorsWriter(tmp_path / "a", layout) as writer,
    ):
        writer.write("a", bytes(7))
    with (
        pytest.raises(ValueError, match="never written: a"),
        SafetensorsWriter(tmp_path / "b", layout),
    ):
        pass
