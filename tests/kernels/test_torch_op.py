"""The registered operator: what torch.compile and CUDA graphs rely on."""

import pytest
import torch

from volta_runtime import ops


@pytest.mark.parametrize("m", [1, 9])
def test_opcheck(sample, device, native, m):
    w = sample(24, 32, device).packed
    x = torch.randn(m, 32).to(device, native)
    torch.library.opcheck(torch.ops.volta.nvfp4_linear.default, (x, w.codes, w.scales, w.row_scale))


def test_compiled_code_calls_the_operator(sample, device, native):
    w = sample(24, 32, device).packed
    x = torch.randn(2, 32).to(device, native)
    compiled = torch.compile(lambda x: ops.nvfp4_linear(x, w) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), ops.nvfp4_linear(x, w) * 2)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 8, 16])
def test_graph_capture(sample, cuda, m):
    w = sample(576, 1536, cuda).packed
    x = torch.randn(m, 1536).to(cuda, torch.float16)
    ops.nvfp4_linear(x, w)  # loads the kernel
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.nvfp4_linear(x, w)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, ops.nvfp4_linear(x, w), rtol=0, atol=0)


@pytest.mark.gpu
def test_kernels_run_on_the_current_stream(sample, cuda):
    w = sample(576, 576, cuda).packed
    x = torch.zeros(1, 576, device=cuda, dtype=torch.float16)
    ops.nvfp4_linear(x, w)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # x is written late on this stream
        x.fill_(1)
        y = ops.nvfp4_linear(x, w)
    side.synchronize()
    torch.testing.assert_close(y, ops.nvfp4_linear(x, w), rtol=0, atol=0)


@pytest.mark.gpu
def test_misaligned_activations_are_refused(sample, cuda):
    w = sample(8, 32, cuda).packed
    x = torch.zeros(33, device=cuda, dtype=torch.float16)[1:]
    with pytest.raises(ValueError, match="address 2 past a multiple of 16"):
        ops.nvfp4_linear(x, w)
