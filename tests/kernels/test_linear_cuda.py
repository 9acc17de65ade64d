"""How products with packed matrices are spread over a GPU."""

from dataclasses import replace

import pytest
import torch
from weights import FORMATS, pack, random_sample

from volta_runtime.ops import linear_cuda
from volta_runtime.ops.linear import linear


@pytest.mark.parametrize("multiprocessors", [80, 132])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("tiles", [1, 5, 128, 260, 1188, 4752])
@pytest.mark.parametrize("chunks", [1, 4, 28, 112])
@pytest.mark.parametrize("tiles_z", [1, 8, 300])
def test_plans_fit_their_scratch(multiprocessors, m, tiles, chunks, tiles_z):
    plan = linear_cuda.plan(m, tiles, chunks, tiles_z, multiprocessors)
    assert 1 <= plan.warps_k <= plan.warps and plan.warps % plan.warps_k == 0
    assert 1 <= plan.split <= chunks
    if plan.split == 1:
        return
    block_tiles = plan.warps // plan.warps_k * plan.warp_tiles
    blocks = -(-tiles // block_tiles) * tiles_z
    rows = blocks * block_tiles * 32
    assert blocks <= linear_cuda._COUNTERS
    assert plan.split * rows * linear_cuda.taken_rows(m) <= linear_cuda._WORKSPACE


def test_rows_that_kernels_take():
    assert [linear_cuda.taken_rows(m) for m in (1, 2, 3, 8, 9, 17, 32)] == [1, 2, 8, 8, 16, 32, 32]


def weight(name, n, k, seed, device, **options):
    sample = random_sample(name, n, k, torch.Generator().manual_seed(seed))
    scale = (sample.row_scale / sample.exact().abs().amax()).float()
    return pack(replace(sample, row_scale=scale), device, **options)


PLANS = [(1, 1, 1, 1), (2, 4, 1, 3), (2, 4, 4, 4), (2, 8, 8, 1), (1, 8, 2, 2), (1, 16, 16, 7)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("m", [1, 2, 5, 12, 29])
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_gives_the_product(cuda, monkeypatch, name, m, plan):
    w = weight(name, 333, 2048, 7, cuda)
    x = torch.randn(m, 2048, dtype=torch.float16, device=cuda)
    monkeypatch.setattr(linear_cuda, "plan", lambda *_: linear_cuda.Plan(*plan))
    y = linear(x, w)
    monkeypatch.setattr(linear_cuda, "MAX_ROWS", 0)
    expected = linear(x, w)
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-3 * expected.abs().max().item())
    at = linear_cuda.scratch(cuda)
    assert not at.counters.any()


@pytest.mark.gpu
def test_equal_calls_give_equal_bits(cuda):
    w = weight("nvfp4", 512, 8192, 3, cuda)
    x = torch.randn(1, 8192, dtype=torch.float16, device=cuda)
    assert linear_cuda.plan(1, *w.data.shape[:2], 1, 132).split > 1
    first = linear(x, w)
    assert all(torch.equal(first, linear(x, w)) for _ in range(50))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nvfp4", "int4_g128", "q4_k", "fp8_block"])
@pytest.mark.parametrize("m", [1, 2, 6, 20, 40])
def test_captured_products_follow_their_inputs(cuda, name, m):
    w = weight(name, 700, 2048, m, cuda, row_order="gate_up")
    x = torch.randn(m, 2048, dtype=torch.float16, device=cuda)
    residual = torch.randn(m, 350, dtype=torch.float16, device=cuda)
    linear(x, w, residual=residual, gated=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = linear(x, w, residual=residual, gated=True)
    for i in range(1000):
        x.normal_()
        graph.replay()
        if i % 50 == 0:
            assert torch.equal(y, linear(x, w, residual=residual, gated=True))


@pytest.mark.gpu
def test_a_first_product_in_a_capture_is_refused(cuda, monkeypatch):
    w = weight("nvfp4", 64, 256, 1, cuda)
    x = torch.randn(1, 256, dtype=torch.float16, device=cuda)
    monkeypatch.setattr(linear_cuda, "_scratch", {})
    with (
        pytest.raises(RuntimeError, match="run the model once before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        linear(x, w)
    torch.cuda.synchronize()
    assert linear(x, w).isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 8, 40])
def test_products_run_on_the_current_stream(cuda, m):
    w = weight("nvfp4", 576, 576, 5, cuda)
    x = torch.zeros(m, 576, dtype=torch.float16, device=cuda)
    linear(x, w)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # x is written late on this stream
        x.fill_(1)
        y = linear(x, w)
    side.synchronize()
    assert torch.equal(y, linear(x, w))


@pytest.mark.gpu
def test_misaligned_activations_are_refused(cuda):
    w = weight("nvfp4", 8, 32, 5, cuda)
    x = torch.zeros(33, dtype=torch.float16, device=cuda)[1:]
    with pytest.raises(ValueError, match="address 2 past a multiple of 16"):
        linear(x, w)
