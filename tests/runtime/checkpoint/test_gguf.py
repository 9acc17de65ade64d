"""GGUF: what is read agrees with the format's own library, and what is wrong is named."""

import struct

import gguf
import numpy as np
import pytest
from ggufs import Tensor, text
from ggufs import gguf as file_of

from volta_runtime.checkpoint import CheckpointError, inspect, open_checkpoint
from volta_runtime.checkpoint.gguf import TYPES, LongArray, part_names, read_gguf, read_parts

PAIRS = {"general.architecture": "llama", "llama.block_count": 1}
Q4_K = Tensor(12, (256, 4), 4 * 144)
GOOD = {"a.weight": Q4_K, "b.weight": Tensor(0, (8,), 32)}


@pytest.fixture
def head(tmp_path):
    def read(content):
        file = tmp_path / "m.gguf"
        file.write_bytes(content)
        return read_gguf(file)

    return read


def test_sizes_are_those_of_the_format(head):
    own = {kind: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert {kind.value: (kind.name, *sizes) for kind, sizes in own.items()} == {
        number: row for number, row in TYPES.items() if row[0] != "Q8_1"
    }


def test_what_the_library_writes_is_read_as_it_reads_it(tmp_path):
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(5e5)
    writer.add_token_list([f"t{n}" for n in range(5000)])
    writer.add_array("few", [1, 2, 3])
    writer.add_custom_alignment(64)
    writer.add_tensor("x", np.ones((3, 8), np.float32))
    packed = gguf.quantize(np.ones((4, 256), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("y", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(file)
    assert found.faults == ()
    assert found.metadata["llama.rope.freq_base"] == 5e5
    assert found.metadata["few"] == [1, 2, 3]
    assert found.metadata["tokenizer.ggml.tokens"] == LongArray(5000)
    assert found.tensors["x"].shape == (3, 8)  # as PyTorch has it
    assert (found.tensors["y"].dtype, found.tensors["y"].shape) == ("Q8_0", (4, 256))
    for tensor in gguf.GGUFReader(file).tensors:
        begin, end = found.tensors[tensor.name].offsets
        assert (begin, end - begin) == (tensor.data_offset, tensor.n_bytes)


PAIR = text("x")
FAULTS = {
    "empty": (b"", "no GGUF file"),
    "another magic": (b"GGML" + bytes(60), "no GGUF file"),
    "a web page": (b"<!DOCTYPE html>", "no GGUF file"),
    "version 1": (file_of({}, version=1), "GGUF version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "of a big-endian machine"),
    "cut off after the magic": (b"GGUF\3\0", "damaged or cut off"),
    "cut off in the pairs": (file_of(PAIRS)[:-1], "the metadata is damaged or cut off"),
    "2^63 pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "pairs, where there can be"),
    "more pairs than models have": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1025),
        "1,025 pairs, where there can be up to 1,024",
    ),
    "2^63 tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), "tensors, where there can"),
    "a text of 2^63 bytes": (
        file_of({"x": struct.pack("<IQ", 8, 1 << 63)}),
        "the metadata is damaged or cut off",
    ),
    "an array of 2^63 numbers": (
        file_of({"x": struct.pack("<IIQ", 9, 10, 1 << 63)}),
        "the metadata is damaged or cut off",
    ),
    "an array of 2^63 texts": (
        file_of({"x": struct.pack("<IIQ", 9, 8, 1 << 63)}),
        "the metadata is damaged or cut off",
    ),
    "an array of arrays": (file_of({"x": struct.pack("<IIQ", 9, 9, 1)}), "an array of type 9"),
    "a value of no type": (file_of({"x": struct.pack("<I", 13)}), "a value of type 13"),
    "a key twice": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (PAIR + struct.pack("<IB", 0, 7)),
        "has x twice",
    ),
    "no alignment": (file_of(PAIRS | {"general.alignment": 0}, GOOD), "general.alignment is 0"),
    "an odd alignment": (file_of(PAIRS | {"general.alignment": 48}, GOOD), "is 48"),
    "cut off in the table": (file_of(PAIRS, GOOD)[:150], "table of 2 tensors is damaged or cut"),
    "five dimensions": (file_of(PAIRS, {"a": Tensor(0, (1,) * 5, 4)}), "dimensions of a"),
    "an unknown type": (file_of(PAIRS, {"a": Tensor(99, (8,), 32)}), "unknown type 99"),
    "rows of no whole blocks": (
        file_of(PAIRS, {"a": Tensor(12, (128, 2), 144)}),
        "rows of 128 weights are no whole blocks of Q4_K",
    ),
    "a product of 2^66": (
        file_of(PAIRS, {"a": Tensor(0, (1 << 33, 1 << 33), 32)}),
        "more weights than 63 bits count",
    ),
    "a gap": (file_of(PAIRS, GOOD | {"b.weight": Tensor(0, (8,), 32, 640)}), ": a gap"),
    "an overlap": (file_of(PAIRS, GOOD | {"b.weight": Tensor(0, (8,), 32, 544)}), ": an overlap"),
    "control characters": (file_of(PAIRS, {"a\x1b": Q4_K}), "control characters"),
    "truncated": (file_of(PAIRS, GOOD)[:-33], "truncated: the data of a.weight and 1 more lies"),
    "bytes left over": (file_of(PAIRS, GOOD) + bytes(33), "33 bytes follow the data"),
}


@pytest.mark.parametrize(("content", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(head, content, message):
    (fault,) = head(content).faults
    assert fault.check == "gguf-header"
    assert message in fault.message


def test_a_sound_file_has_no_faults_padded_or_not(head):
    content = file_of(PAIRS, GOOD | {"c": Tensor(0, (1,), 4)})
    assert head(content).faults == ()
    assert head(content[:-28]).faults == ()


def test_a_name_twice_is_named(head):
    content = file_of(PAIRS, {"aa": Q4_K, "ab": Q4_K}).replace(text("ab"), text("aa"))
    (fault,) = head(content).faults
    assert (fault.tensor, fault.message) == ("aa", "the name occurs twice")


def parts(directory, count=3, **first):
    names = [f"m-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    for number, name in enumerate(names):
        pairs = PAIRS | {"split.count": count, "split.tensors.count": count} | first
        content = file_of(pairs if number == 0 else {}, {f"t{number}": Q4_K})
        (directory / name).write_bytes(content)
    return names


def test_all_parts_are_read_by_any_of_them(tmp_path):
    names = parts(tmp_path)
    assert part_names(names[1]) == names
    for name in names:
        contents = inspect(tmp_path / name).contents
        assert contents.tensors.keys() == {"t0", "t1", "t2"}
        assert contents.metadata["general.architecture"] == "llama"
        assert [file.name for file in contents.files] == names
        assert contents.faults == ()


def test_a_missing_part_is_named(tmp_path):
    names = parts(tmp_path)
    (tmp_path / names[1]).unlink()
    (fault,) = read_parts(tmp_path / names[0], names[::2]).faults
    assert fault.message == f"1 of 3 parts are missing: {names[1]}"


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"split.count": 4}, "split.count says 4 parts, the file's name 3"),
        ({"split.tensors.count": 9}, "split.tensors.count says 9 tensors, the parts have 3"),
    ],
)
def test_parts_of_another_model_are_named(tmp_path, first, message):
    names = parts(tmp_path, **first)
    (fault,) = read_parts(tmp_path / names[0], names).faults
    assert fault.message == message


def test_a_name_that_tells_of_many_parts_costs_nothing(tmp_path):
    file = tmp_path / "m-00001-of-99999.gguf"
    file.write_bytes(file_of(PAIRS, GOOD))
    (fault,) = read_parts(file, [file.name]).faults
    assert fault.message.startswith("99998 of 99999 parts are missing: m-00002-of-99999.gguf, ")


def test_of_several_models_in_a_directory_one_is_judged(tmp_path):
    for name in ("a-Q4_K.gguf", "a-Q8_0.gguf", "mmproj-a.gguf"):
        (tmp_path / name).write_bytes(file_of(PAIRS, GOOD))
    contents = inspect(tmp_path).contents
    assert contents.tensors["a.weight"].file.name == "a-Q4_K.gguf"
    (fault,) = contents.faults
    assert (fault.level, fault.found) == ("warn", "a-Q4_K.gguf, a-Q8_0.gguf")


def test_who_serves_says_that_it_takes_safetensors(tmp_path):
    (tmp_path / "m.gguf").write_bytes(file_of(PAIRS, GOOD))
    with pytest.raises(CheckpointError, match="in GGUF; `volta-serve convert`"):
        open_checkpoint(tmp_path / "m.gguf")
