"""RMSNorm against float64."""

import re

import pytest
import torch
from graphs import check_replays

from volta_runtime import ops

EPS = 1e-6
# Half a unit in FP16's last place and a little; norms of a rounded sum are off by twice that.
TOLERANCE = {
    torch.float32: {"rtol": 2e-6, "atol": 1e-30},
    torch.float16: {"rtol": 2.0**-11 * 1.02, "atol": 2.0**-25},
}


@pytest.fixture
def dtype(device):
    return torch.float32 if device.type == "cpu" else torch.float16


def exact(s, weight, offset=0.0, eps=EPS):
    s = s.double()
    return s / (s.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + offset)


def in_nan(values):
    """The values amid NaN, and the memory around them."""
    memory = values.new_full((values.numel() + 64,), float("nan"))
    inner = memory[32:-32].view(values.shape)
    return inner.copy_(values), (memory[:32], memory[-32:])


SIZES = [
    *((rows, 4096) for rows in (1, 2, 65)),
    *((3, hidden) for hidden in (1, 7, 8, 31, 128, 200, 576, 1027, 2048, 2880, 7168, 16384)),
    *((2, hidden) for hidden in (4099, 16392, 40000)),  # beyond what registers hold
    (1031, 64),
]


@pytest.mark.parametrize(("rows", "hidden"), SIZES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norm(device, dtype, rows, hidden, offset):
    torch.manual_seed(rows * 100003 + hidden)
    x = (torch.randn(rows, hidden) * 3).to(device, dtype)
    weight = torch.randn(hidden).to(device, dtype)
    y = ops.rms_norm(x, weight, EPS, offset=offset)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    torch.testing.assert_close(y.double(), exact(x, weight, offset), **TOLERANCE[dtype])


@pytest.mark.parametrize(("rows", "hidden"), SIZES)
@pytest.mark.parametrize("wide", [False, True])
def test_residual(device, dtype, rows, hidden, wide):
    torch.manual_seed(rows * 100003 + hidden + 1)
    x = torch.randn(rows, hidden).to(device, dtype)
    weight = torch.randn(hidden).to(device, dtype)
    before = (torch.randn(rows, hidden) * 5).to(device, torch.float32 if wide else dtype)
    residual, around = in_nan(before)
    y = ops.rms_norm(x, weight, EPS, residual)
    s = x.double() + before.double()
    torch.testing.assert_close(y.double(), exact(s, weight), **TOLERANCE[dtype])
    assert torch.equal(residual, (x.float() + before.float()).to(before.dtype))
    assert all(edge.isnan().all() for edge in around)


def test_many_rows(device, dtype):
    torch.manual_seed(5)
    x = torch.randn(65536, 40).to(device, dtype)
    weight = torch.randn(40).to(device, dtype)
    y = ops.rms_norm(x, weight, EPS)
    torch.testing.assert_close(y.double(), exact(x, weight), **TOLERANCE[dtype])


@pytest.mark.parametrize("hidden", [63, 4096, 16392])
@pytest.mark.parametrize("value", [65504.0, -65504.0, 2.0**-24, 0.0])
def test_extremes(device, dtype, hidden, value):
    x = torch.full((2, hidden), value).to(device, dtype)
    weight = torch.linspace(-2, 2, hidden).to(device, dtype)
    y = ops.rms_norm(x, weight, 1e-12)
    expected = exact(x, weight, eps=1e-12)
    torch.testing.assert_close(y.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("hidden", [9, 512])
def test_results_beyond_float16_are_its_ends(device, dtype, hidden):
    x = torch.full((1, hidden), 60000.0).to(device, dtype)
    x[:, 1::2] *= -1
    weight = torch.full((hidden,), 65504.0).to(device, dtype)
    residual = x.clone()
    y = ops.rms_norm(x, weight, EPS, residual, offset=1000.0)
    assert torch.equal(residual.sign(), x.sign())
    largest = 65504.0 if dtype == torch.float16 else 120000.0
    assert (residual.abs() == largest).all()
    expected = exact(2 * x.double(), weight, 1000.0)
    if dtype == torch.float16:
        expected = expected.clamp(-65504, 65504)
    torch.testing.assert_close(y.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("hidden", [65, 64, 4096])
def test_nan_and_infinity_stay_in_their_rows(device, dtype, hidden):
    torch.manual_seed(hidden)
    x = torch.randn(4, hidden).to(device, dtype)
    weight = torch.ones(hidden).to(device, dtype)
    expected = exact(x, weight)
    x[1, hidden // 2] = float("nan")
    x[2, hidden - 1] = float("inf")
    residual = torch.zeros_like(x)
    y = ops.rms_norm(x, weight, EPS, residual)
    assert y[1].isnan().all() and y[2, hidden - 1].isnan()
    assert torch.equal(residual.nan_to_num(7, 8, 9), x.nan_to_num(7, 8, 9))
    torch.testing.assert_close(y[[0, 3]].double(), expected[[0, 3]], **TOLERANCE[dtype])


def test_a_row_does_not_depend_on_the_others(device, dtype):
    torch.manual_seed(3)
    x = torch.randn(33, 576).to(device, dtype)
    weight = torch.randn(576).to(device, dtype)
    together = ops.rms_norm(x, weight, EPS)
    assert all(
        torch.equal(ops.rms_norm(row, weight, EPS), y) for row, y in zip(x, together, strict=True)
    )


def test_leading_dimensions_are_kept(device, dtype):
    weight = torch.ones(48).to(device, dtype)
    for lead in [(), (0,), (2, 3)]:
        x = torch.randn(*lead, 48).to(device, dtype)
        assert ops.rms_norm(x, weight, EPS).shape == x.shape


X, W = torch.zeros(2, 32), torch.zeros(32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.half(), W), "x is torch.float16 [2, 32] on cpu"),
        ((X[:, ::2], W[:16]), "x is torch.float32 [2, 16] on cpu, strides [32, 2]"),
        ((torch.tensor(1.0), W), "x is a scalar, needs [..., hidden]"),
        ((X.to("meta"), W), "there are kernels for cpu and cuda, not for meta"),
        ((X, W[1:]), "weight is torch.float32 [31]"),
        ((X, W.half()), "weight is torch.float16 [32]"),
        ((X, W, X.half()), "residual is torch.float16 [2, 32] on cpu"),
        ((X, W, X[:1]), "residual is torch.float32 [1, 32] on cpu"),
        ((X, W, torch.zeros(32, 2).T), "residual is torch.float32 [2, 32] on cpu, strides [1, 2]"),
    ],
)
def test_refusals(arguments, message):
    x, weight, *residual = arguments
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.rms_norm(x, weight, EPS, *residual)


def test_the_kernel_checks_sizes_itself():
    kernel = ops.native.kernels.rms_norm_cpu
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernel(0, 0, 0, 0, 1, 0, 0, EPS, 0.0, 1)
    with pytest.raises(ValueError, match="no such weight format or kernel variant"):
        kernel(0, 0, 0, 0, 1, 8, 2, EPS, 0.0, 1)


@pytest.mark.gpu
def test_misaligned_memory_is_refused(cuda):
    x = torch.zeros(33, device=cuda, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"x is .* address 2 past a multiple of 16"):
        ops.rms_norm(x[1:], x[:32], EPS)


@pytest.mark.parametrize("residual", [False, True])
def test_opcheck(device, dtype, residual):
    x, weight = torch.randn(3, 40).to(device, dtype), torch.randn(40).to(device, dtype)
    more = torch.randn_like(x) if residual else None
    op = torch.ops.volta.rms_norm.default
    torch.library.opcheck(op, (x, weight, EPS, more), {"offset": 1.0})


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "hidden"), [(1, 4096), (8, 577), (300, 2880)])
@pytest.mark.parametrize("wide", [False, True])
def test_graph_replays(cuda, rows, hidden, wide):
    x = torch.empty(rows, hidden, device=cuda, dtype=torch.float16)
    residual = torch.empty_like(x, dtype=torch.float32 if wide else torch.float16)
    weight = torch.randn(hidden, device=cuda).half()

    def change(i):
        torch.manual_seed(i)
        x.normal_()
        residual.normal_()

    check_replays(lambda: (ops.rms_norm(x, weight, EPS, residual), residual), change)
