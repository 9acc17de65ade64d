"""The registered operator: what torch.compile relies on."""

import pytest
import torch

from volta_runtime import ops


@pytest.mark.parametrize("m", [1, 9])
def test_opcheck(sample, m):
    w = sample(24, 32).packed
    x = torch.randn(m, 32)
    torch.library.opcheck(torch.ops.volta.nvfp4_linear.default, (x, w.codes, w.scales, w.row_scale))


def test_compiled_code_calls_the_operator(sample):
    w = sample(24, 32).packed
    x = torch.randn(2, 32)
    compiled = torch.compile(lambda x: ops.nvfp4_linear(x, w) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), ops.nvfp4_linear(x, w) * 2)
