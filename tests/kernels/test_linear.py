"""The CPU engine's products against a float64 reference of the same weights."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from volta_runtime import ops

TOLERANCE = 1e-5  # FP32 throughout

pytestmark = pytest.mark.usefixtures("isa")


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize(("n", "k"), [(1, 16), (7, 48), (193, 576), (576, 1536), (33, 4112)])
def test_gemv(sample, worst, m, n, k):
    made = sample(n, k)
    x = torch.randn(m, k)
    y = ops.nvfp4_linear(x, made.packed)
    assert y.dtype == torch.float32 and y.shape == (m, n)
    assert worst(y, x.double() @ made.exact.T) < TOLERANCE


@pytest.mark.parametrize("m", [9, 67])
@pytest.mark.parametrize(("n", "k"), [(7, 48), (1501, 576)])
def test_more_rows_than_a_gemv_takes(sample, worst, m, n, k):
    made = sample(n, k)
    x = torch.randn(m, k)
    y = ops.nvfp4_linear(x, made.packed)
    assert worst(y, x.double() @ made.exact.T) < TOLERANCE


@pytest.mark.parametrize("scale", [448.0, 2.0**-9, -448.0])
def test_extreme_scales(sample, worst, scale):
    scales = torch.full((16, 2), scale).to(torch.float8_e4m3fn).view(torch.uint8)
    made = sample(16, 32, scales=scales, row_scale=torch.full((16,), 0.5))
    x = torch.randn(3, 32)
    y = ops.nvfp4_linear(x, made.packed)
    assert worst(y, x.double() @ made.exact.T) < TOLERANCE


def test_zero_scales_give_zero(sample):
    made = sample(9, 48, scales=torch.zeros(9, 3, dtype=torch.uint8))
    y = ops.nvfp4_linear(torch.randn(2, 48), made.packed)
    assert (y == 0).all()


def test_large_activations(sample, worst):
    made = sample(8, 64, row_scale=torch.full((8,), 1e-6))
    x = torch.rand(1, 64) * 30000
    y = ops.nvfp4_linear(x, made.packed)
    assert worst(y, x.double() @ made.exact.T) < TOLERANCE


def test_leading_dimensions_are_kept(sample):
    made = sample(24, 32)
    for lead in [(), (0,), (2, 3), (4, 5)]:
        x = torch.randn(*lead, 32)
        y = ops.nvfp4_linear(x, made.packed)
        assert y.shape == (*lead, 24)
        flat = ops.nvfp4_linear(x.reshape(-1, 32), made.packed)
        assert torch.equal(y.reshape(-1, 24), flat)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 8, 21])
@pytest.mark.parametrize(("n", "k"), [(1, 16), (49, 576), (2000, 592)])
def test_half_linear(worst, m, n, k):
    w = torch.randn(n, k).half()
    w[0, :3] = torch.tensor([65504.0, 2.0**-24, -(2.0**-15)])  # largest, subnormals
    x = torch.randn(m, k)
    assert worst(ops.half_linear(x, w), x.double() @ w.double().T) < 1e-5


def test_any_number_of_threads_gives_the_same_bits(sample):
    made = sample(203, 576)
    x = torch.randn(3, 576)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results += [ops.nvfp4_linear(x, made.packed) for _ in range(50)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(y, results[0]) for y in results)


def test_concurrent_callers(sample):
    matrices = [sample(n, 576).packed for n in (64, 203, 576, 1000)]
    x = torch.randn(1, 576)
    expected = [ops.nvfp4_linear(x, w) for w in matrices]

    def call(i):
        return torch.equal(ops.nvfp4_linear(x, matrices[i % 4]), expected[i % 4])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(400)))
