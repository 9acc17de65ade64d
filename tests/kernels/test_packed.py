"""Packing: what went in comes out, and means what the formula of its name says."""

import dataclasses
import re

import pytest
import torch
from weights import FORMATS, Sample, multiple, pack, random_codes, random_sample, random_scales

from volta_runtime.ops import formats, native, packed

# FP16 rounds a weight once, Q6_K's product of code and scale before that too.
ROUNDING = {"cpu": 2e-7, "cuda": 1.1 * 2**-10}


def unpack(weight):
    codes, scales, row_scale = packed.unpack(weight)
    return Sample(weight.format, codes.cpu(), tuple(s.cpu() for s in scales), row_scale.cpu())


def assert_same(actual, expected):
    assert torch.equal(actual.codes, expected.codes)
    assert torch.equal(actual.row_scale, expected.row_scale)
    for ours, theirs in zip(actual.scales, expected.scales, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def assert_means(weight, exact):
    w = packed.dequantize(weight).cpu()
    assert w.dtype == torch.float32
    rounding = ROUNDING[weight.device.type]
    # With a minimum, a weight is a difference of two numbers up to its row's largest.
    minimum = weight.format in ("q4_1", "q4_k", "q5_k")
    room = exact.abs().amax(1, keepdim=True) if minimum else exact.abs()
    assert ((w.double() - exact).abs() <= rounding * room).all()


def sizes(name, generator):
    """One tile, then odd tails of rows and of the last chunk."""
    step = multiple(name)
    yield 1, step
    for _ in range(6):
        n = int(torch.randint(1, 100, (), generator=generator))
        yield n, step * int(torch.randint(1, max(2, 1100 // step), (), generator=generator))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_packed_comes_out_and_means_the_same(name, device, generator):
    for n, k in sizes(name, generator):
        sample = random_sample(name, n, k, generator)
        weight = pack(sample, device)
        assert (weight.n, weight.k, weight.device.type) == (n, k, device.type)
        assert_same(unpack(weight), sample)
        assert_means(weight, sample.exact())


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_in_every_column(name, device):
    k = max(256, multiple(name))
    first = random_codes(name, 256, k, torch.Generator().manual_seed(0))
    every = torch.unique(first.flatten())
    codes = every[(torch.arange(256)[:, None] + torch.arange(k)) % len(every)].contiguous()
    scales = random_scales(name, 256, k, torch.Generator().manual_seed(1))
    sample = Sample(name, codes, scales, torch.ones(256))
    weight = pack(sample, device)
    assert_same(unpack(weight), sample)
    assert_means(weight, sample.exact())


@pytest.mark.parametrize("name", FORMATS)
def test_filling_is_zero(name, device, generator):
    sample = random_sample(name, 5, multiple(name), generator)
    weight = pack(sample, device)
    chunk = formats.FORMATS[name].chunk
    whole = packed.PackedWeight(
        name, weight.data, torch.ones_like(weight.row_scale), weight.half_factor, 32, chunk
    )
    w = packed.dequantize(whole)
    assert (w[5:] == 0).all() and (w[:, sample.codes.shape[1] :] == 0).all()
    assert (weight.row_scale[5:] == 0).all() and (weight.half_factor[5:] == 1).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("n", [2, 62, 64, 150])
def test_gate_and_up_alternate(name, n, device, generator):
    sample = random_sample(name, n, 2 * multiple(name), generator)
    weight = pack(sample, device, row_order="gate_up")
    assert weight.data.shape[0] == 2 * -(-n // 64)
    assert_same(unpack(weight), sample)
    assert_means(weight, sample.exact())
    gate = Sample(
        name,
        sample.codes[: n // 2],
        tuple(array[: n // 2] for array in sample.scales),
        sample.row_scale[: n // 2],
    )
    assert torch.equal(weight.data[0::2], pack(gate, device).data)


@pytest.mark.parametrize("name", ["int4_g32", "int4_g128"])
def test_columns_in_the_order_of_their_groups(name, device, generator):
    n, k = 40, 4 * multiple(name)
    sample = random_sample(name, n, k, generator)
    perm = torch.randperm(k, generator=generator).int()
    weight = pack(sample, device, perm=perm.to(device))
    assert_same(unpack(weight), sample)
    in_groups = Sample(name, sample.codes[:, perm], sample.scales, sample.row_scale).exact()
    assert_means(weight, in_groups[:, perm.argsort()])


@pytest.mark.parametrize("name", FORMATS)
def test_weights_fill_half_precision(name, device, generator):
    sample = random_sample(name, 70, 2 * multiple(name), generator)
    weight = pack(sample, device)
    factor = weight.half_factor[:70].double().cpu()
    largest = (sample.exact() / sample.row_scale.double()[:, None]).abs().amax(1)
    if name == "mxfp4":
        largest = (sample.exact() / weight.row_scale[:70].double().cpu()[:, None]).abs().amax(1)
    top = largest * factor
    # Rounding to float32 may take a number across a power of two.
    assert ((top == 0) | ((top >= 2**14 * (1 - 1e-6)) & (top <= 2**15))).all()
    assert (torch.frexp(factor).mantissa == 0.5).all()


def test_mxfp4_over_the_whole_range_of_e8m0(device):
    # Rows of one power each, from 2^-127 to 2^127, with the largest code that FP32 holds there.
    scales = torch.arange(255, dtype=torch.uint8)[:, None].expand(255, 2).contiguous()
    codes = torch.full((255, 64), 3, dtype=torch.uint8)  # 1.5
    sample = Sample("mxfp4", codes, (scales,), torch.ones(255))
    weight = pack(sample, device)
    assert_same(unpack(weight), sample)
    assert torch.equal(packed.dequantize(weight).cpu().double(), sample.exact())


def test_mxfp4_within_a_row(device, generator):
    scales = torch.randint(40, 160, (50, 8), generator=generator).to(torch.uint8)
    sample = Sample("mxfp4", random_codes("mxfp4", 50, 256, generator), (scales,), torch.ones(50))
    weight = pack(sample, device)
    assert_same(unpack(weight), sample)
    if device.type == "cpu":
        assert torch.equal(packed.dequantize(weight).double(), sample.exact())


def test_mxfp4_takes_no_scale_from_blocks_of_zeros(device):
    codes = torch.tensor([[0] * 32 + [2] * 32, [0] * 64], dtype=torch.uint8)
    scales = torch.tensor([[254, 20], [254, 7]], dtype=torch.uint8)
    weight = pack(Sample("mxfp4", codes, (scales,), torch.ones(2)), device)
    w = packed.dequantize(weight).cpu()
    assert torch.equal(w, torch.tensor([[0.0] * 32 + [2.0**-107] * 32, [0.0] * 64]))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_zeros(name, device, generator):
    sample = random_sample(name, 33, multiple(name), generator)
    zeros = tuple(
        torch.zeros_like(s) if s.is_floating_point() or name == "nvfp4" else s
        for s in sample.scales
    )
    codes = torch.zeros_like(sample.codes) if name in ("mxfp4", "fp8") else sample.codes
    weight = pack(Sample(name, codes, zeros, sample.row_scale), device)
    assert (packed.dequantize(weight) == 0).all()
    assert (weight.half_factor == 1).all()


def test_the_tables_of_both_sides_agree():
    assert formats.compiled() is formats.FORMATS
    assert list(formats.FORMATS) == list(FORMATS)


def test_kernels_of_another_version_are_told(monkeypatch):
    class Other:
        formats = (*native.kernels.formats[:-1], (14, "fp9_block", 128, 4224, 16, ()))

    monkeypatch.setattr(native, "kernels", Other)
    formats.compiled.cache_clear()
    with pytest.raises(native.KernelsMissingError, match=r"differ: .*fp9_block"):
        formats.compiled()
    monkeypatch.undo()
    formats.compiled.cache_clear()


def test_to_another_device_and_its_size(device, generator):
    sample = random_sample("int4_g128", 40, 256, generator)
    perm = torch.randperm(256, generator=generator).int()
    here = pack(sample, torch.device("cpu"), perm=perm)
    there = here.to(device)
    assert there.device.type == device.type and there.perm.device.type == device.type
    assert_same(unpack(there), sample)
    assert here.nbytes == 2 * 2 * 2176 + 2 * 64 * 4 + 256 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "int3"}, "there is no weight format 'int3', there are nvfp4, mxfp4"),
        ({"codes": torch.zeros(4, 48, dtype=torch.uint8)}, "[4, 48], needs [n, k] with n > 0 and"),
        ({"codes": torch.zeros(0, 64, dtype=torch.uint8)}, "codes has shape [0, 64]"),
        ({"codes": torch.zeros(64, dtype=torch.uint8)}, "codes has shape [64]"),
        ({"codes": torch.zeros(4, 64)}, "codes is torch.float32 [4, 64]"),
        ({"codes": torch.zeros(64, 4, dtype=torch.uint8).T}, "strides [1, 4]"),
        ({"codes": torch.full((4, 64), 16, dtype=torch.uint8)}, "codes is above 15: 256 of 256"),
        ({"scales": ()}, "int4_g32 has 2 arrays of scales, 0 given"),
        ({0: torch.ones(4, 2)}, "scales[0] is torch.float32 [4, 2]"),
        ({0: torch.ones(4, 1).half()}, "needs contiguous torch.float16 [4, 2]"),
        ({0: torch.full((4, 2), torch.inf).half()}, "scales[0] is not finite: 8 of 8"),
        ({1: torch.full((4, 2), 17).to(torch.uint8)}, "a zero point, is above 16: 8 of 8, the"),
        ({"row_scale": torch.ones(5)}, "row_scale is torch.float32 [5]"),
        ({"row_scale": torch.full((4,), torch.nan)}, "row_scale is not finite: 4 of 4, the first"),
        ({"perm": torch.zeros(64, dtype=torch.int32)}, "perm is no order of 64 columns"),
        ({"perm": torch.arange(64)}, "perm is torch.int64 [64]"),
    ],
)
def test_pack_refuses(change, message):
    scales = [torch.ones(4, 2).half(), torch.zeros(4, 2, dtype=torch.uint8)]
    for i in (0, 1):
        scales[i] = change.get(i, scales[i])
    codes = change.get("codes", torch.zeros(4, 64, dtype=torch.uint8))
    options = {key: change[key] for key in ("row_scale", "perm") if key in change}
    with pytest.raises(ValueError, match=re.escape(message)):
        packed.pack(
            change.get("format", "int4_g32"), codes, *change.get("scales", scales), **options
        )


@pytest.mark.parametrize(
    ("name", "codes", "scales", "message"),
    [
        ("nvfp4", 0, [(1, 0xFF)], "scales[0] is NaN: 1 of 64, the first at [1, 2]"),
        ("mxfp4", 0, [(1, 0xFF)], "scales[0] is NaN: 1 of 32"),
        ("q4_k", 0, [(1, 0), (1, 0), (1, 64), (1, 0)], "scales[2] has more than 6 bits"),
        ("q5_k", 0, [(1, 0), (1, 0), (1, 0), (1, 64)], "scales[3] has more than 6 bits"),
        ("q5_k", 32, [(1, 0), (1, 0), (1, 0), (1, 0)], "codes is above 31: 1 of 1024"),
        ("q6_k", 64, [(1, 0), (1, 0)], "codes is above 63"),
        ("fp8", 0x7F, [], "codes is NaN: 1 of 1024, the first at [1, 2]"),
        ("fp8_block", 0xFF, [(1, 0)], "codes is NaN"),
    ],
)
def test_pack_refuses_numbers(name, codes, scales, message):
    row = formats.FORMATS[name]
    arrays = [torch.zeros(4, 256 // columns).to(dtype) for dtype, columns in row.scales]
    q = torch.zeros(4, 256, dtype=torch.uint8)
    q[1, 2] = codes
    for array, (_, value) in zip(arrays, scales, strict=True):
        array[1, min(2, array.shape[1] - 1)] = value
    with pytest.raises(ValueError, match=re.escape(message)):
        packed.pack(name, q, *arrays)


def test_gate_and_up_of_unequal_size_are_refused(generator):
    with pytest.raises(ValueError, match="n = 3 is odd"):
        pack(random_sample("int4", 3, 32, generator), torch.device("cpu"), row_order="gate_up")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 64}, "data is torch.uint8 [2, 2, 2304] on cpu"),
        ({"n": 31}, "needs contiguous torch.uint8 [1, 2, 2304]"),
        ({"row_order": "gate_up", "n": 130}, "needs contiguous torch.uint8 [6, 2, 2304]"),
        ({"row_scale": torch.ones(33)}, "row_scale is torch.float32 [33]"),
        ({"half_factor": torch.ones(64).half()}, "half_factor is torch.float16 [64]"),
        ({"perm": torch.arange(160)}, "perm is torch.int64 [160]"),
        ({"k": 150}, "k a multiple of 16"),
        ({"data": torch.zeros(9217, dtype=torch.uint8)[1:].view(2, 2, 2304)}, "its data 1 past"),
    ],
)
def test_foreign_tiles_are_refused(change, message, generator):
    weight = pack(random_sample("nvfp4", 33, 160, generator), torch.device("cpu"))
    wrong = dataclasses.replace(weight, **change)
    for use in (packed.unpack, packed.dequantize):
        with pytest.raises(ValueError, match=re.escape(message)):
            use(wrong)


def test_codes_at_any_address(generator):
    sample = random_sample("fp8", 3, 48, generator)
    shifted = torch.empty(145, dtype=torch.uint8)[1:].view(3, 48).copy_(sample.codes)
    there = Sample("fp8", shifted, (), sample.row_scale)
    assert_same(unpack(pack(there, torch.device("cpu"))), sample)


def test_the_kernels_check_sizes_themselves():
    with pytest.raises(ValueError, match="does not take these sizes"):
        native.kernels.pack_cpu(0, 0, 0, 0, 0, 0, 0, 8, 24, 1)
    with pytest.raises(ValueError, match="no such weight format"):
        native.kernels.dequantize_cpu(15, 0, 0, 0, 8, 32, 1)
    with pytest.raises(ValueError, match="lacks the instruction set"):
        native.kernels.linear_cpu(0, 0, 0, 0, 0, 1, 8, 32, 1, 2)
