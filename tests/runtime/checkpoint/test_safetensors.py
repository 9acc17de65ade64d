"""The safetensors header: what is accepted, and one clear message for each fault."""

import json

import numpy as np
import pytest
import safetensors.numpy

from volta_runtime.checkpoint import CheckpointError
from volta_runtime.checkpoint.safetensors import SafetensorsWriter, read_header

GOOD = {"a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}


def raw(header, data=bytes(12)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes):
    return {"a": GOOD["a"] | changes}


FAULTS = {
    "empty": (b"", "the file is empty"),
    "shorter than the length field": (b"\x08\0\0", "truncated"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n",
        "Git LFS pointer.*git lfs pull",
    ),
    "header longer than the file": (raw(GOOD)[:40], "header needs .* bytes and the file has 40"),
    "another kind of file": (b"PK\x03\x04" + bytes(range(60)), "not a safetensors file"),
    "header not JSON": (raw(b"{nonsense}"), "not sound JSON"),
    "header not UTF-8": (raw(b'{"\xff": 1}'), "not sound JSON"),
    "header not an object": (raw([1]), "not a JSON object"),
    "name twice": (raw(b'{"a": 1, "a": 2}'), "a name occurs twice"),
    "tensor not an object": (raw({"a": 7}), "tensor a lacks a sound dtype"),
    "no offsets": (raw({"a": {"dtype": "F16", "shape": [1]}}), "tensor a lacks a sound"),
    "negative size": (raw(entry(shape=[-2, -3])), "tensor a lacks a sound"),
    "unknown dtype": (raw(entry(dtype="F3")), "tensor a has unknown dtype 'F3'"),
    "size and offsets disagree": (
        raw(entry(shape=[2, 4])),
        r"tensor a of F16 \[2, 4\] needs 16 bytes but its offsets hold 12",
    ),
    "gap": (raw(entry(data_offsets=[4, 16]), bytes(16)), "tensor a begins at byte .* gap"),
    "overlap": (
        raw(GOOD | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}}),
        "tensor b begins at byte .* overlap",
    ),
    "data truncated": (raw(GOOD, bytes(11)), "tensor a ends at byte .* truncated"),
    "bytes left over": (raw(GOOD, bytes(13)), "describes .* bytes but the file has"),
}


@pytest.mark.parametrize(("content", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_named(tmp_path, content, message):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as error:
        read_header(file)
    assert str(file) in str(error.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot read: No such file"):
        read_header(tmp_path / "gone.safetensors")


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
