"""Products with packed matrices against float64."""

import re

import pytest
import torch
from weights import CODES, FORMATS, Sample, multiple, pack, random_codes, random_sample

from volta_runtime import ops
from volta_runtime.ops import formats
from volta_runtime.ops.linear import linear

# Of the sum of the products' magnitudes. CUDA multiplies and adds some in FP16.
TOLERANCE = {"cpu": 1e-5, "cuda": 2e-3}


@pytest.fixture(params=["scalar", "avx2", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, take_isa):
    """Each implementation of the product in turn."""
    if request.param == "cuda":
        return request.getfixturevalue("cuda")
    take_isa(request.param)
    return torch.device("cpu")


def assert_product(y, x, exact):
    """y is x exactT, as near as the device comes."""
    x = x.double().cpu()
    expected, room = x @ exact.T, x.abs() @ exact.abs().T
    y, device = y.double().cpu(), y.device.type
    if device == "cuda":  # FP16 results: none beyond its largest, subnormal below 2^-14
        expected, room = expected.clamp(-65504, 65504), room + 2**-24
    assert not y.isnan().any()
    assert ((y - expected).abs() <= TOLERANCE[device] * room).all()


def activations(m, k, generator, device, native, size=1.0):
    return (torch.randn(m, k, generator=generator) * size).to(device, native)


@pytest.mark.parametrize("name", FORMATS)
def test_random_shapes(name, device, native, generator):
    """On the CPU 10,000 shapes in all: 15 formats, two instruction sets."""
    step = multiple(name)
    for _ in range(340 if device.type == "cpu" else 100):
        n, m = (int(torch.randint(1, top, (), generator=generator)) for top in (70, 12))
        k = step * int(torch.randint(1, max(2, 600 // step), (), generator=generator))
        sample = random_sample(name, n, k, generator)
        x = activations(m, k, generator, device, native)
        assert_product(linear(x, pack(sample, device)), x, sample.exact())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("m", [1, 7, 8, 33, 130])
def test_sizes_of_models(name, m, device, native, generator):
    sample = random_sample(name, 193, 2048, generator)
    x = activations(m, 2048, generator, device, native)
    assert_product(linear(x, pack(sample, device)), x, sample.exact())


def filled(name, n, k, code, generator):
    """Every code this one, where it is no number for any."""
    codes = random_codes(name, n, k, generator)
    return torch.full_like(codes, code)


LARGEST = {"q8_0": -128, "fp8": 0x7E, "fp8_block": 0x7E} | {
    name: CODES.get(name, 16) - 1 for name in ("q4_1", "q4_k", "q5_k", "q6_k")
}


@pytest.mark.parametrize("name", FORMATS)
def test_largest_codes_and_scales(name, device, native, generator):
    """One row's scale keeps the result in FP16; everything before it is as large as can be."""
    n, k = 40, 2 * max(128, multiple(name))
    codes = filled(name, n, k, LARGEST.get(name, 7 if "fp4" in name else 0), generator)
    top = {torch.float16: 65504.0, torch.float32: 1e30, torch.bfloat16: 1e30, torch.int8: -128}
    scales = []
    for dtype, columns in formats.FORMATS[name].scales:
        value = top.get(dtype, {"nvfp4": 0x7E, "mxfp4": 251}.get(name, 63))
        if name.startswith("int4_g") and dtype == torch.uint8:
            value = 16
        scales.append(torch.full((n, -(-k // columns)), value, dtype=dtype))
    sample = Sample(name, codes, tuple(scales), torch.ones(n))
    row_scale = (1 / sample.exact().abs().amax(1).clamp(min=1)).float()
    sample = Sample(name, codes, tuple(scales), row_scale)
    for size in (1.0, 65504.0 / 4):
        x = activations(3, k, generator, device, native, size / 64)
        assert_product(linear(x, pack(sample, device)), x, sample.exact())


@pytest.mark.parametrize("name", FORMATS)
def test_smallest_scales(name, device, native, generator):
    n, k = 40, 2 * multiple(name)
    sample = random_sample(name, n, k, generator)
    least = {torch.float16: 2.0**-24, torch.float32: 2.0**-100, torch.bfloat16: 2.0**-100}
    scales = tuple(
        torch.full_like(s, least[s.dtype]) if s.is_floating_point() else s for s in sample.scales
    )
    if name in ("nvfp4", "mxfp4"):
        scales = (torch.full_like(sample.scales[0], 1),)
    sample = Sample(name, sample.codes, scales, torch.ones(n))
    row_scale = (1 / sample.exact().abs().amax(1).clamp(min=2.0**-126)).float()
    sample = Sample(name, sample.codes, scales, row_scale)
    x = activations(5, k, generator, device, native)
    assert_product(linear(x, pack(sample, device)), x, sample.exact())


@pytest.mark.parametrize("name", FORMATS)
def test_large_activations(name, device, native, generator):
    """Near FP16's largest, in the worst row all of one sign: sums in FP16 would overflow."""
    n, k = 64, 4 * max(64, multiple(name))
    sample = random_sample(name, n, k, generator)
    exact = sample.exact()
    x = 65504.0 * torch.rand(6, k, generator=generator)
    x[0], x[1] = 65504.0, 65504.0 * exact[3].sign()
    room = (65504.0 * exact.abs().sum(1)).clamp(min=1e-30)
    sample = Sample(
        sample.format, sample.codes, sample.scales, (sample.row_scale * (6e4 / room)).float()
    )
    x = x.float().to(device, native)
    assert_product(linear(x, pack(sample, device)), x, sample.exact())


@pytest.mark.parametrize("name", FORMATS)
def test_groups_of_zeros_give_zero(name, device, native, generator):
    n, k = 50, 2 * multiple(name)
    sample = random_sample(name, n, k, generator)
    scales = tuple(
        torch.zeros_like(s) if s.is_floating_point() or name == "nvfp4" else s
        for s in sample.scales
    )
    codes = torch.zeros_like(sample.codes) if name in ("mxfp4", "fp8") else sample.codes
    weight = pack(Sample(name, codes, scales, sample.row_scale), device)
    x = activations(3, k, generator, device, native, 60000.0 / 4)
    assert (linear(x, weight) == 0).all()


def test_rows_of_fused_matrices_keep_their_own_scale(device, native, generator):
    """q, k and v whose globals lie 1000 times apart: each row is what it is alone, to the bit."""
    parts = [random_sample("nvfp4", n, 256, generator) for n in (64, 32, 32)]
    parts = [
        Sample("nvfp4", p.codes, p.scales, torch.full_like(p.row_scale, 10.0 ** (-3 * i)))
        for i, p in enumerate(parts)
    ]
    joined = Sample(
        "nvfp4",
        torch.cat([p.codes for p in parts]),
        (torch.cat([p.scales[0] for p in parts]),),
        torch.cat([p.row_scale for p in parts]),
    )
    x = activations(2, 256, generator, device, native, 0.01)
    y = linear(x, pack(joined, device))
    assert_product(y, x, joined.exact())
    if device.type == "cpu":  # on CUDA the shape may choose another order of the sum
        assert torch.equal(y, torch.cat([linear(x, pack(p, device)) for p in parts], -1))


def test_columns_in_another_order(device, native, generator):
    sample = random_sample("int4_g128", 70, 512, generator)
    perm = torch.randperm(512, generator=generator).int()
    sorted_ = Sample("int4_g128", sample.codes[:, perm], sample.scales, sample.row_scale).exact()
    x = activations(3, 512, generator, device, native)
    y = linear(x, pack(sample, device, perm=perm.to(device)))
    assert_product(y, x, sorted_[:, perm.argsort()])


@pytest.mark.parametrize("name", ["nvfp4", "q4_k"])
@pytest.mark.parametrize("n", [64, 86, 130])
@pytest.mark.parametrize("m", [1, 9, 40])
def test_bias_gate_and_residual(name, n, m, device, native, generator):
    k = 256
    sample = random_sample(name, n, k, generator)
    sample = Sample(
        name, sample.codes, sample.scales, sample.row_scale / sample.exact().abs().amax() / 4
    )
    x = activations(m, k, generator, device, native)
    bias = activations(1, n, generator, device, native)[0]
    plain, paired = pack(sample, device), pack(sample, device, row_order="gate_up")

    product = x.double().cpu() @ sample.exact().T
    added = product + bias.double().cpu()
    gate, up = added.chunk(2, -1)
    gated = torch.nn.functional.silu(gate) * up
    for y, expected in (
        (linear(x, plain, bias), added),
        (linear(x, paired, bias), added),
        (linear(x, paired), product),
        (linear(x, paired, bias, gated=True), gated),
    ):
        assert y.shape == expected.shape and y.is_contiguous()
        torch.testing.assert_close(y.double().cpu(), expected, rtol=3e-3, atol=3e-3)
        residual = activations(*y.shape, generator, device, native)
        with_residual = linear(
            x,
            paired if y.shape[-1] != n or expected is product else plain,
            None if expected is product else bias,
            residual,
            gated=expected is gated,
        )
        expected = expected + residual.double().cpu()
        torch.testing.assert_close(with_residual.double().cpu(), expected, rtol=3e-3, atol=3e-3)


def test_leading_dimensions_are_kept(device, native, generator):
    weight = pack(random_sample("int4_g64", 24, 64, generator), device)
    for lead in [(), (0,), (2, 3), (4, 5)]:
        x = torch.randn(*lead, 64, generator=generator).to(device, native)
        assert linear(x, weight).shape == (*lead, 24)


def test_any_number_of_threads_gives_the_same_bits(generator):
    weight = pack(random_sample("q6_k", 203, 512, generator), torch.device("cpu"))
    x = torch.randn(11, 512, generator=generator)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results += [linear(x, weight) for _ in range(5)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(y, results[0]) for y in results)


@pytest.mark.parametrize("row_order", ["plain", "gate_up"])
def test_opcheck(row_order, device, native, generator):
    w = pack(random_sample("int4_g32", 70, 64, generator), device, row_order=row_order)
    gated = row_order == "gate_up"
    x = activations(3, 64, generator, device, native)
    bias = activations(1, 70, generator, device, native)[0]
    residual = activations(3, 35 if gated else 70, generator, device, native)
    arguments = (
        x, w.data, w.row_scale, w.half_factor, None, w.format, w.n, w.row_order, bias, residual,
        gated,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.volta.packed_linear.default, arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 240)}, "x has shape [2, 240], needs [..., 256] for W [40, 256]"),
        ({"x": torch.zeros(())}, "x has shape [], needs [..., 256]"),
        ({"x": torch.zeros(2, 256).half()}, "x is torch.float16 [2, 256]"),
        ({"x": torch.zeros(2, 512)[:, ::2]}, "strides [512, 2]"),
        ({"bias": torch.zeros(39)}, "bias is torch.float32 [39]"),
        ({"residual": torch.zeros(2, 39)}, "residual is torch.float32 [2, 39]"),
        ({"gated": True}, "gated needs W in gate_up order, it is in plain order"),
    ],
)
def test_refuses(change, message, generator):
    weight = pack(random_sample("nvfp4", 40, 256, generator), torch.device("cpu"))
    arguments = {"x": torch.zeros(2, 256)} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        linear(packed=weight, **arguments)


def test_the_operator_checks_the_packed_tensors_too(generator):
    w = pack(random_sample("nvfp4", 40, 256, generator), torch.device("cpu"))
    rest = (w.half_factor, None, w.format, w.n, w.row_order, None, None, False)
    op = torch.ops.volta.packed_linear
    with pytest.raises(ValueError, match=r"data is torch\.uint8 \[2, 2, 2304\]"):
        op(torch.zeros(2, 96), w.data, w.row_scale, *rest)
    with pytest.raises(ValueError, match=r"row_scale is torch\.float32 \[40\]"):
        op(torch.zeros(2, 256), w.data, w.row_scale[:40], *rest)


def test_compiled_code_calls_the_operator(generator):
    w = pack(random_sample("q8_0", 40, 64, generator), torch.device("cpu"))
    x = torch.randn(2, 64, generator=generator)
    compiled = torch.compile(lambda x: linear(x, w) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), linear(x, w) * 2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("m", [1, 16])
def test_graph_capture(name, m, cuda, generator):
    weight = pack(random_sample(name, 576, 1536, generator), cuda)
    x = torch.randn(m, 1536, generator=generator).to(cuda, torch.float16)
    linear(x, weight)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = linear(x, weight)
    for i in range(1000):
        x.normal_()
        graph.replay()
        if i % 100 == 0:
            torch.testing.assert_close(y, linear(x, weight), rtol=0, atol=0)
    assert ops.kernels_info()["cuda"]
