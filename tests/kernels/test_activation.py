"""Gated activations against float64."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from graphs import check_replays

from volta_runtime import ops

# CUDA: half a unit in FP16's last place, and what its fast exp and division leave.
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 1e-36},
    torch.float16: {"rtol": 2.0**-11 * 1.05, "atol": 2.0**-25 * 1.01},
}

EXACT = {
    "silu": lambda gate, up: F.silu(gate) * up,
    # Forms of the two that keep small results; held to torch's own below.
    "gelu_tanh": lambda gate, up: (
        gate / (1 + torch.exp(-2 * (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
    ),
    "gelu": lambda gate, up: gate * torch.special.erfc(-gate / 2**0.5) / 2 * up,
    "swiglu_oai": lambda gate, up: gate * torch.sigmoid(1.702 * gate) * (up + 1),
}


@pytest.fixture
def dtype(device):
    return torch.float32 if device.type == "cpu" else torch.float16


def exact(kind, gate, up, dtype, limit=0.0):
    gate, up = gate.double(), up.double()
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    y = EXACT[kind](gate, up)
    if dtype == torch.float16:
        y = torch.where(y.isinf() & gate.isinf(), y, y.clamp(-65504, 65504))
    return y


def fused(gate, up, interleaved):
    return torch.stack((gate, up), -1).flatten(-2) if interleaved else torch.cat((gate, up), -1)


def test_the_reference():
    assert tuple(EXACT) == ops.GATED_KINDS
    gate = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    for kind, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        torch_gelu = F.gelu(gate, approximate=approximate)
        torch.testing.assert_close(EXACT[kind](gate, 1.0), torch_gelu, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ops.GATED_KINDS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("limit", [0.0, 7.0])
@pytest.mark.parametrize(
    ("rows", "n"),
    [(1, 14336), (5, 1), (3, 7), (2, 8), (700, 24), (9, 100), (4, 2880), (33, 768), (2, 4099)],
)
def test_gated(device, dtype, kind, interleaved, limit, rows, n):
    torch.manual_seed(rows * 10007 + n)
    gate, up = ((torch.randn(rows, n) * 5).to(device, dtype) for _ in range(2))
    y = ops.gated_activation(fused(gate, up, interleaved), kind, limit, interleaved)
    assert (y.dtype, y.shape) == (dtype, gate.shape)
    expected = exact(kind, gate, up, dtype, limit)
    torch.testing.assert_close(y.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ops.GATED_KINDS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("n", [4096, 4095])
def test_every_magnitude(device, dtype, kind, interleaved, n):
    largest = 65504.0 if dtype == torch.float16 else 1e12
    half = torch.logspace(-8, 0, n // 2) * largest
    gate = torch.cat((half, -half, torch.zeros(n % 2))).unsqueeze(0).to(device, dtype)
    for value in (1.0, -65504.0, 2.0**-24):
        up = torch.full_like(gate, value)
        y = ops.gated_activation(fused(gate, up, interleaved), kind, interleaved=interleaved)
        torch.testing.assert_close(y.double(), exact(kind, gate, up, dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ops.GATED_KINDS)
@pytest.mark.parametrize("limit", [0.0, 7.0])
@pytest.mark.parametrize("n", [16, 17])
def test_nan_and_infinity(device, dtype, kind, limit, n):
    torch.manual_seed(n)
    nan, inf = float("nan"), float("inf")
    gate, up = (torch.randn(1, n).to(device, dtype) for _ in range(2))
    gate[0, :3] = torch.tensor([nan, inf, 0.5])
    up[0, :3] = torch.tensor([1.0, 2.0, nan])
    y = ops.gated_activation(fused(gate, up, False), kind, limit)
    expected = exact(kind, gate, up, dtype, limit)
    assert expected[0, :3].isnan().tolist() == [True, False, True]
    torch.testing.assert_close(y.double(), expected, **TOLERANCE[dtype], equal_nan=True)


def test_leading_dimensions_are_kept(device, dtype):
    for lead in [(), (0,), (2, 3)]:
        x = torch.randn(*lead, 48).to(device, dtype)
        assert ops.gated_activation(x, "silu").shape == (*lead, 24)
    assert ops.gated_activation(torch.empty(3, 0).to(device, dtype), "silu").shape == (3, 0)


X = torch.zeros(2, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.half(), "silu"), "gate_up is torch.float16 [2, 32] on cpu"),
        ((X.T, "silu"), "strides [1, 32]"),
        ((X[:, 1:], "silu"), "gate_up has shape [2, 31], needs [..., 2n]"),
        ((torch.tensor(1.0), "silu"), "gate_up has shape [], needs [..., 2n]"),
        ((X, "relu"), "no gated activation 'relu', only silu, gelu_tanh, gelu, swiglu_oai"),
        ((X, "silu", -1.0), "limit is -1.0, needs 0 (none) or more"),
        ((X, "silu", float("nan")), "limit is nan"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.gated_activation(*arguments)


def test_the_kernel_checks_arguments_itself():
    kernel = ops.native.kernels.gated_activation_cpu
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernel(0, 0, 1, 0, 0, 0, 0.0, 1)
    with pytest.raises(ValueError, match="no such weight format or kernel variant"):
        kernel(0, 0, 1, 8, len(ops.GATED_KINDS), 0, 0.0, 1)


@pytest.mark.parametrize("kind", ops.GATED_KINDS)
def test_opcheck(device, dtype, kind):
    x = torch.randn(3, 40).to(device, dtype)
    op = torch.ops.volta.gated_activation.default
    torch.library.opcheck(op, (x, kind), {"limit": 7.0, "interleaved": True})


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ops.GATED_KINDS)
@pytest.mark.parametrize(("rows", "n"), [(1, 14336), (8, 99), (300, 2880)])
def test_graph_replays(cuda, kind, rows, n):
    x = torch.empty(rows, 2 * n, device=cuda, dtype=torch.float16)

    def change(i):
        torch.manual_seed(i)
        x.normal_()

    check_replays(lambda: (ops.gated_activation(x, kind, 7.0, True),), change)
