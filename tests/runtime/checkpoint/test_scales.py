"""The values of scales against torch, and what happens to files that change under the reader."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_shard
from hypothesis import given, settings
from hypothesis import strategies as st

from volta_runtime.checkpoint.floats import FLOATS
from volta_runtime.checkpoint.safetensors import read_header
from volta_runtime.checkpoint.scales import Scales, ScaleValues, read_floats
from volta_runtime.checkpoint.tensors import TensorInfo

TORCH = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def tensors_of(file: Path) -> list[TensorInfo]:
    held = read_header(file).tensors.values()
    return [TensorInfo(i.name, i.dtype, i.shape, i.file, i.offsets) for i in held]


def read(file: Path, budget: int | None = None) -> Scales:
    return read_floats(((info, FLOATS[info.dtype]) for info in tensors_of(file)), budget)


def expected(dtype: str, data: bytes) -> ScaleValues:
    """What torch makes of the same bytes."""
    kind = TORCH[dtype]
    values = torch.frombuffer(bytearray(data), dtype=kind).double()
    finite = values[values.isfinite()]
    tiny = torch.finfo(kind).smallest_normal
    zero = tiny if dtype == "F8_E8M0" else 0.0  # which has none: its least value stands for it
    above = finite[finite > zero]
    count = len(values)
    return ScaleValues(
        count,
        count,
        finite.min().item() if len(finite) else None,
        finite.max().item() if len(finite) else None,
        above.min().item() if len(above) else None,
        count - len(finite),
        int((finite == zero).sum()),
        int((finite < 0).sum()),
        int(((finite != 0) & (finite.abs() < tiny)).sum()),
        None if count != 1 else finite.item() if len(finite) else float("nan"),
    )


def same(left: ScaleValues, right: ScaleValues) -> bool:
    return repr(left).replace("-0.0", "0.0") == repr(right).replace("-0.0", "0.0")


@pytest.mark.parametrize("dtype", TORCH)
def test_every_pattern_of_the_narrow_types(dtype: str, tmp_path: Path) -> None:
    width = FLOATS[dtype].width
    edges = [0, 1, 2, 0x7F7FFF, 0x7FFFFF, 0x800000, 0x800001, 0x7F7FFFFF, 0x7F800000, 0x7F800001]
    patterns = range(1 << 8 * width) if width < 4 else [*edges, *(e | 1 << 31 for e in edges)]
    for bits in patterns if width == 1 else []:
        file = tmp_path / "one.safetensors"
        data = bytes([bits])
        write_shard(file, {"scale": (dtype, [], data)})
        assert same(read(file).values["scale"], expected(dtype, data)), bits
    data = b"".join(bits.to_bytes(width, "little") for bits in patterns)
    write_shard(tmp_path / "all.safetensors", {"scale": (dtype, [len(data) // width], data)})
    assert same(read(tmp_path / "all.safetensors").values["scale"], expected(dtype, data))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_values_as_torch_has_them(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensors: dict[str, tuple[Any, ...]] = {}
    for number, dtype in enumerate(data.draw(st.lists(st.sampled_from([*TORCH]), max_size=5))):
        width = FLOATS[dtype].width
        count = data.draw(st.integers(1, 40))
        raw = data.draw(st.binary(min_size=count * width, max_size=count * width))
        tensors[f"t{number}"] = (dtype, [count], raw)
    file = tmp_path_factory.mktemp("any") / "model.safetensors"
    write_shard(file, tensors)
    scales = read(file)
    assert scales.bytes_read == scales.bytes_in_all == sum(len(t[2]) for t in tensors.values())
    for name, (dtype, _, raw) in tensors.items():
        assert same(scales.values[name], expected(dtype, raw))


def test_large_tensors_are_sampled_and_scalars_are_not(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    large = {f"large{i}": ("F8_E4M3", [1024, 1024], b"\x38" * (1 << 20)) for i in range(3)}
    scalars = {f"scalar{i}": ("F32", [1], b"\0\0\x80\x3f") for i in range(100)}
    write_shard(file, large | scalars)
    scales = read(file, budget=200_000)
    assert all(scales.values[name].value == 1.0 for name in scalars)
    assert all(0 < scales.values[name].read < 1 << 20 for name in large)
    assert 100_000 < scales.bytes_read <= 200_000
    assert scales.bytes_in_all == 3 * (1 << 20) + 400
    assert not scales.unread


@pytest.mark.parametrize("dtype", ["F8_E4M3", "BF16", "F32"])
def test_pieces_are_spread_over_the_whole_tensor_and_keep_its_elements(
    dtype: str, tmp_path: Path
) -> None:
    width = FLOATS[dtype].width
    one = {1: b"\x38", 2: b"\x80\x3f", 4: b"\0\0\x80\x3f"}[width]
    zeros = one * 5_000 + bytes(width) * 990_000 + one * 5_000
    file = tmp_path / "model.safetensors"
    write_shard(file, {"odd": ("U8", [3], b"abc"), "scale": (dtype, [1_000_000], zeros)})
    scale = tensors_of(file)[1]
    values = read_floats([(scale, FLOATS[dtype])], 100_000).values["scale"]
    assert (values.low, values.high, values.nans) == (0.0, 1.0, 0)
    assert values.read == 98_304 // width  # six pieces
    assert values.read - values.zeros == 2 * min(5_000, (16 << 10) // width)  # at both ends


def test_everything_reads_everything_in_pieces(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    data = b"\x38" * 999_999 + b"\x7f"
    write_shard(file, {"scale": ("F8_E4M3", [1_000_000], data)})
    assert read(file).values["scale"] == ScaleValues(1_000_000, 1_000_000, 1.0, 1.0, 1.0, nans=1)


def test_a_file_that_shrank_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = {f"t{i}": ("F32", [10_000], b"\0\0\x80\x3f" * 10_000) for i in range(4)}
    write_shard(file, tensors)
    infos = tensors_of(file)
    os.truncate(file, infos[2].offsets[0] + 4_002)
    scales = read_floats([(info, FLOATS["F32"]) for info in infos], None)
    assert scales.unread == dict.fromkeys(("t2", "t3"), "the file ends before its end")
    assert [scales.values[f"t{i}"].read for i in range(4)] == [10_000, 10_000, 1_000, 0]
    assert scales.values["t3"].low is None
    assert scales.bytes_read == 84_000


def test_files_that_are_gone_or_no_files_are_told(tmp_path: Path) -> None:
    infos = []
    for name in ("gone", "pipe"):
        file = tmp_path / name
        write_shard(file, {name: ("F32", [1], b"\0\0\x80\x3f")})
        infos += tensors_of(file)
        file.unlink()
    os.mkfifo(tmp_path / "pipe")
    scales = read_floats([(info, FLOATS["F32"]) for info in infos], None)
    assert scales.unread == {"gone": "No such file or directory", "pipe": "Illegal seek"}
    assert scales.bytes_read == 0


def test_tensors_that_a_lying_header_lays_over_each_other(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_shard(file, {"a": ("F8_E4M3", [1_000_000], b"\x38" * 1_000_000)})
    (info,) = tensors_of(file)
    begin = info.offsets[0]
    inner = TensorInfo("b", "F8_E4M3", (5,), file, (begin + 10, begin + 15))
    scales = read_floats([(one, FLOATS["F8_E4M3"]) for one in (info, inner)], None)
    assert (scales.values["a"].read, scales.values["b"].read) == (1_000_000, 5)
