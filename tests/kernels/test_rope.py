"""Norm and rotation of query and key heads against float64, as complex numbers."""

import math
import re

import pytest
import torch
from graphs import check_replays

from volta_runtime import ops

EPS = 1e-6
TOLERANCE = {
    torch.float32: {"rtol": 1e-6, "atol": 2e-6},
    torch.float16: {"rtol": 2.0**-11 * 1.02, "atol": 5e-6},
}


@pytest.fixture
def dtype(device):
    return torch.float32 if device.type == "cpu" else torch.float16


def exact(heads, weight, cos_sin, interleaved, offset):
    """heads [tokens, n, head_dim] and each token's row of the table."""
    x = heads.double()
    if weight is not None:
        rms = (x.square().mean(-1, keepdim=True) + EPS).sqrt()
        x = x / rms * (weight.double() + offset)
    cos, sin = cos_sin.double().chunk(2, -1)
    turn = torch.complex(cos, sin).unsqueeze(1)
    rotary_dim = cos_sin.shape[-1]
    rotated, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if interleaved:
        turned = torch.view_as_complex(rotated.unflatten(-1, (-1, 2)).contiguous()) * turn
        rotated = torch.view_as_real(turned).flatten(-2)
    else:
        turned = torch.complex(*rotated.contiguous().chunk(2, -1)) * turn
        rotated = torch.cat((turned.real, turned.imag), -1)
    return torch.cat((rotated, rest), -1)


def table(rows, rotary_dim, device):
    angles = torch.rand(rows, rotary_dim // 2, dtype=torch.float64) * 2 * math.pi
    return torch.cat((angles.cos(), angles.sin()), -1).float().to(device)


SHAPES = [  # heads, kv_heads, head_dim, rotary_dim
    (32, 8, 128, 128),
    (14, 2, 64, 64),
    (8, 1, 256, 64),
    (3, 1, 80, 32),
    (6, 2, 192, 64),
    (5, 1, 512, 512),
    (4, 4, 96, 96),
    (1, 0, 128, 128),
    (0, 3, 64, 32),
    # not in vectors of eight
    (2, 2, 96, 24),
    (2, 1, 66, 10),
    (1, 1, 2, 2),
    (3, 2, 510, 510),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("q_norm", "k_norm"), [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize(("tokens", "gap"), [(1, 0), (7, 8), (61, 3)])
def test_norm_and_rotation(device, dtype, shape, interleaved, q_norm, k_norm, tokens, gap):
    heads, kv_heads, head_dim, rotary_dim = shape
    torch.manual_seed(heads * 1009 + head_dim * 31 + tokens)
    width = (heads + 2 * kv_heads) * head_dim
    memory = torch.full((tokens, width + gap), float("nan")).to(device, dtype)
    qkv = memory[:, :width]
    qkv.copy_(torch.randn(tokens, width))
    before = qkv.clone()
    cos_sin = table(100, rotary_dim, device)
    index = torch.int32 if tokens % 2 else torch.int64
    positions = torch.randint(0, 100, (tokens,), dtype=index).to(device)
    weights = [
        torch.randn(head_dim).to(device, dtype) if norm else None for norm in (q_norm, k_norm)
    ]
    offset = 1.0 if tokens == 7 else 0.0
    ops.qk_norm_rope(
        qkv,
        *weights,
        cos_sin,
        positions,
        heads,
        kv_heads,
        head_dim,
        EPS,
        interleaved=interleaved,
        offset=offset,
    )
    ends = (heads * head_dim, (heads + kv_heads) * head_dim)
    for weight, start, end in zip(weights, (0, ends[0]), ends, strict=True):
        part = before[:, start:end].unflatten(1, (-1, head_dim))
        expected = exact(part, weight, cos_sin[positions.long()], interleaved, offset)
        got = qkv[:, start:end].double()
        torch.testing.assert_close(got, expected.flatten(1), **TOLERANCE[dtype])
    assert torch.equal(qkv[:, ends[1] :], before[:, ends[1] :])
    assert memory[:, width:].isnan().all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("head_dim", [64, 66])
@pytest.mark.parametrize(
    ("unknown", "index"),
    [
        *((unknown, torch.int32) for unknown in (-1, 100, 2**31 - 1)),
        *((unknown, torch.int64) for unknown in (-1, 100, 2**32, 2**63 - 1, -(2**63))),
    ],
)
def test_unknown_positions_give_nan(device, dtype, interleaved, head_dim, unknown, index):
    torch.manual_seed(head_dim)
    qkv = torch.randn(3, 4 * head_dim).to(device, dtype)
    before = qkv.clone()
    cos_sin = table(100, 32, device)
    weight = torch.randn(head_dim).to(device, dtype)
    positions = torch.tensor([99, unknown, 0], dtype=index).to(device)
    call = (weight, weight, cos_sin, positions, 2, 1, head_dim, EPS)
    ops.qk_norm_rope(qkv, *call, interleaved=interleaved)
    known = torch.where(positions == unknown, 0, positions).long()
    heads = before[:, : 3 * head_dim].unflatten(1, (3, head_dim))
    expected = exact(heads, weight, cos_sin[known], interleaved, 0.0)
    expected[1, :, :32] = float("nan")
    got = qkv[:, : 3 * head_dim].unflatten(1, (3, head_dim)).double()
    torch.testing.assert_close(got, expected, **TOLERANCE[dtype], equal_nan=True)


@pytest.mark.parametrize("head_dim", [64, 62])
def test_large_numbers(device, dtype, head_dim):
    """Neither squares nor rotations overflow on the way, and float16 results stay finite."""
    qkv = torch.full((2, 4 * head_dim), 65504.0).to(device, dtype)
    cos_sin = torch.full((1, head_dim), math.sqrt(0.5)).to(device)
    weight = torch.ones(head_dim).to(device, dtype)
    positions = torch.zeros(2, dtype=torch.int64, device=device)
    ops.qk_norm_rope(qkv, None, weight, cos_sin, positions, 2, 1, head_dim, EPS)
    query, key = qkv[:, :head_dim].double(), qkv[:, 2 * head_dim : 3 * head_dim].double()
    half = head_dim // 2
    bound = 65504.0 if dtype == torch.float16 else 65504.0 * math.sqrt(2)
    torch.testing.assert_close(
        query[:, half:], torch.full_like(query[:, half:], bound), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        key[:, half:], torch.full_like(query[:, half:], 2**0.5), rtol=1e-3, atol=0
    )
    assert (query[:, :half].abs() < 0.01).all() and (key[:, :half].abs() < 1e-6).all()


QKV, W, TABLE, AT = torch.zeros(2, 128), torch.zeros(32), torch.zeros(9, 32), torch.zeros(2).int()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((QKV.half(), W, W, TABLE, AT, 2, 1, 32), "qkv is torch.float16 [2, 128] on cpu"),
        ((QKV, W, W, TABLE, AT, 3, 1, 32), "needs torch.float32 [tokens, 160]"),
        ((QKV[0], W, W, TABLE, AT, 2, 1, 32), "qkv is torch.float32 [128] on cpu"),
        ((QKV.T[:4], W, W, TABLE, AT, 0, 1, 1), "0 heads and 1 KV heads of 1: needs"),
        ((QKV[:1].expand(2, 128), W, W, TABLE, AT, 2, 1, 32), "strides [0, 1]"),
        ((torch.zeros(128, 2).T, W, W, TABLE, AT, 2, 1, 32), "strides [1, 2]"),
        ((QKV, W, W, TABLE, AT, -2, 3, 32), "-2 heads and 3 KV heads of 32"),
        ((torch.zeros(2, 514), None, None, TABLE, AT, 1, 0, 514), "1 heads and 0 KV heads of 514"),
        ((QKV, W[1:], W, TABLE, AT, 2, 1, 32), "q_weight is torch.float32 [31]"),
        ((QKV, W, W.half(), TABLE, AT, 2, 1, 32), "k_weight is torch.float16 [32]"),
        ((QKV, W, W, TABLE.double(), AT, 2, 1, 32), "cos_sin is torch.float64 [9, 32]"),
        ((QKV, W, W, TABLE[:, 1:], AT, 2, 1, 32), "cos_sin has shape [9, 31], needs"),
        ((QKV, W, W, TABLE[:0], AT, 2, 1, 32), "cos_sin has shape [0, 32], needs"),
        ((QKV, W, W, torch.zeros(9, 34), AT, 2, 1, 32), "rotates 34 elements, but a head has 32"),
        ((QKV, W, W, TABLE, AT.short(), 2, 1, 32), "positions is torch.int16 [2]"),
        ((QKV, W, W, TABLE, AT[:1], 2, 1, 32), "positions is torch.int32 [1]"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.qk_norm_rope(*arguments, EPS)


def test_the_kernel_checks_sizes_itself():
    kernel = ops.native.kernels.qk_norm_rope_cpu
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernel(0, 0, 0, 0, 0, 4, 1, 95, 2, 1, 32, 32, 9, 0, EPS, 0.0, 1)
    with pytest.raises(ValueError, match="no such weight format or kernel variant"):
        kernel(0, 0, 0, 0, 0, 2, 1, 128, 2, 1, 32, 32, 9, 0, EPS, 0.0, 1)


def test_no_tokens(device, dtype):
    qkv, none = torch.empty(0, 128).to(device, dtype), torch.empty(0).long().to(device)
    ops.qk_norm_rope(qkv, None, None, table(9, 32, device), none, 2, 1, 32, EPS)


@pytest.mark.parametrize("norm", [False, True])
def test_opcheck(device, dtype, norm):
    weight = torch.randn(32).to(device, dtype) if norm else None
    torch.library.opcheck(
        torch.ops.volta.qk_norm_rope.default,
        (
            torch.randn(2, 128).to(device, dtype),
            weight,
            weight,
            table(9, 16, device),
            torch.tensor([3, 8]).to(device),
            2,
            1,
            32,
            EPS,
        ),
        {"interleaved": True},
    )


@pytest.mark.gpu
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 128), (40, 66), (300, 128)])
def test_graph_replays(cuda, tokens, head_dim, norm):
    qkv = torch.empty(tokens, 12 * head_dim, device=cuda, dtype=torch.float16)
    positions = torch.empty(tokens, device=cuda, dtype=torch.int64)
    cos_sin = table(4096, head_dim, cuda)
    weight = torch.randn(head_dim, device=cuda).half() if norm else None

    def change(i):
        torch.manual_seed(i)
        qkv.normal_()
        positions.random_(-2, 4098)

    def call():
        ops.qk_norm_rope(qkv, weight, weight, cos_sin, positions, 8, 2, head_dim, EPS)
        return (qkv,)

    check_replays(call, change)
