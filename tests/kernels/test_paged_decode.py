"""Paged decode attention against a float64 reference that knows nothing of pages or splits."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from volta_runtime import ops
from volta_runtime.ops.native import ACTIVATION

DTYPES = [torch.float16, torch.float8_e5m2, torch.int8, torch.float32]
LENGTHS = (0, 1, 7, 8, 9, 15, 16, 17, 33, 300, 700)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3}  # of the largest number of a head's output


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request, device):
    if request.param == torch.float32 and ACTIVATION[device.type] != torch.float32:
        pytest.skip("float32 caches are for the CPU")
    return request.param


@dataclass
class Case:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    lengths: Tensor
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def run(self):
        return ops.paged_decode(**vars(self))


def random_codes(shape, dtype):
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, dtype=dtype)
    return torch.randn(shape).to(dtype)


def make(device, dtype, lengths=LENGTHS, kv_heads=2, group=4, dim=128, size=16, spare=3, **rest):
    """A random case; everything in the caches and tables that no token owns is poison."""
    torch.manual_seed(dim * 31 + group)
    used = [-(-n // size) for n in lengths]
    blocks = sum(used) + spare
    order = torch.randperm(blocks)
    table = torch.full((len(lengths), max([*used, 0]) + 2), 2**31 - 1, dtype=torch.int32)
    shape = (blocks, kv_heads, size, dim)
    caches = [random_codes(shape, dtype) for _ in range(2)]
    owned = torch.zeros(blocks, size, dtype=torch.bool)
    for s, n in enumerate(lengths):
        table[s, : used[s]] = order[sum(used[:s]) : sum(used[: s + 1])]
        for b in range(used[s]):
            owned[table[s, b], : n - b * size] = True
    foreign = ~owned[:, None, :, None].expand(shape)
    if dtype == torch.int8:
        scales = torch.rand(2, kv_heads) * 0.02 + 0.005
        rest = {"k_scale": scales[0].to(device), "v_scale": scales[1].to(device), **rest}
    else:
        caches = [c.float().masked_fill(foreign, torch.nan).to(dtype) for c in caches]
    return Case(
        torch.randn(len(lengths), kv_heads * group, dim).to(device, ACTIVATION[device.type]),
        caches[0].to(device),
        caches[1].to(device),
        table.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        dim**-0.5,
        **rest,
    )


def reference(case):
    """out [sequences, heads, head_dim] in float64 on the CPU."""

    def exact(cache, scale):
        numbers = cache.cpu().double()
        return numbers if scale is None else numbers * scale.cpu().double()[:, None, None]

    k_cache, v_cache = exact(case.k_cache, case.k_scale), exact(case.v_cache, case.v_scale)
    q, table = case.q.cpu().double(), case.block_table.cpu()
    size = k_cache.shape[2]
    group = q.shape[1] // k_cache.shape[1]
    out = torch.zeros_like(q)
    for s, n in enumerate(case.lengths.tolist()):
        if n == 0:
            continue
        blocks = table[s, : -(-n // size)].long()
        first = max(0, n - case.window) if case.window else 0
        # [heads, tokens, head_dim]
        k, v = (
            c[blocks].transpose(0, 1).flatten(1, 2)[:, first:n].repeat_interleave(group, 0)
            for c in (k_cache, v_cache)
        )
        logits = torch.einsum("hd,htd->ht", q[s], k) * case.scale
        if case.soft_cap:
            logits = case.soft_cap * torch.tanh(logits / case.soft_cap)
        if case.sinks is not None:
            logits = torch.cat([logits, case.sinks.cpu().double()[:, None]], 1)
        p = torch.softmax(logits, 1)[:, : n - first]
        out[s] = torch.einsum("ht,htd->hd", p, v)
    return out


def assert_right(case, actual=None, tolerance=None):
    actual = case.run() if actual is None else actual
    exact = reference(case)
    assert actual.shape == case.q.shape
    assert actual.dtype == case.q.dtype
    error = (actual.double().cpu() - exact).abs().amax(2)
    limit = (tolerance or TOLERANCE[actual.dtype]) * exact.abs().amax(2)
    assert (error <= limit).all(), (error / limit).nan_to_num(torch.inf).amax(1)
    assert not actual[case.lengths == 0].any()


@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("group", [1, 4, 12])
def test_types_and_head_dims(device, dtype, dim, group):
    assert_right(make(device, dtype, dim=dim, group=group))


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_groups(device, group, kv_heads):
    case = make(device, torch.float16, (0, 21, 130), kv_heads, group, 64)
    assert_right(case)


@pytest.mark.parametrize("size", [16, 48, 128])
def test_block_sizes(device, dtype, size):
    lengths = (size - 1, size, size + 1, 3 * size + 5)
    assert_right(make(device, dtype, lengths, size=size, dim=64))


@pytest.mark.parametrize("window", [1, 5, 16, 100, 257, 5000])
def test_windows(device, dtype, window):
    case = make(device, dtype, window=window, dim=64)
    # What has left the window may be in other hands.
    if dtype != torch.int8:
        k_cache, v_cache, table = case.k_cache.cpu(), case.v_cache.cpu(), case.block_table.tolist()
        for s, n in enumerate(LENGTHS):
            for t in range(max(0, n - window)):
                at = table[s][t // 16], slice(None), t % 16
                k_cache[at] = v_cache[at] = torch.nan
        case = replace(case, k_cache=k_cache.to(device), v_cache=v_cache.to(device))
    assert_right(case)


@pytest.mark.parametrize("soft_cap", [1.0, 30.0])
@pytest.mark.parametrize("loud", [1, 100])
def test_soft_cap(device, dtype, soft_cap, loud):
    case = make(device, dtype, soft_cap=soft_cap, dim=64)
    assert_right(replace(case, scale=case.scale * loud))


@pytest.mark.parametrize("level", [0.0, 5.0, -30.0])
def test_sinks(device, dtype, level):
    case = make(device, dtype, dim=64)
    sinks = (torch.randn(case.q.shape[1]) + level).to(device)
    assert_right(replace(case, sinks=sinks))
    assert_right(replace(case, sinks=sinks, window=9, soft_cap=20.0))


def test_a_sink_may_take_all_or_nothing(device):
    case = make(device, torch.float16, (1, 40))
    take = torch.full((case.q.shape[1],), 1e4, device=device)
    assert not replace(case, sinks=take).run().any()
    assert_right(replace(case, sinks=-take))
    assert_right(replace(case, sinks=take - torch.inf))


def test_long_contexts(device):
    """Many splits of each sequence, of very different lengths."""
    lengths = (4096, 1, 5003, 255, 256, 257, 0)
    assert_right(make(device, torch.float16, lengths, kv_heads=1, group=4, dim=64))
    assert_right(make(device, torch.float16, lengths, 1, 4, 64, window=1000, soft_cap=5.0))


def test_thousands_of_equal_tokens_lose_none(device):
    case = make(device, torch.float16, (6000,), kv_heads=1, group=2, dim=64)
    case.k_cache.nan_to_num_().zero_()
    assert_right(case)


def test_faint_tokens_add_up(device):
    # One token with all the probability but for some 6000 of 2^-24 each.
    n = 6000
    case = make(device, torch.float16, (n,), kv_heads=1, group=1, dim=64, spare=0)
    case.k_cache.zero_()
    case.v_cache.fill_(1)
    case.q.zero_()
    case.q[..., 0] = 1
    first = case.block_table[0, 0]
    case.k_cache[first, 0, 0, 0] = 24 * 0.6931 * 8
    case.v_cache[first, 0, 0] = 0
    assert_right(case, tolerance=2e-3)


def test_largest_numbers(device):
    """Sums of multiples of 65504 are exact in FP32: the largest win, ties share."""
    case = make(device, torch.float16, (17, 100, 333), dim=256)
    case.q.copy_(case.q.sign() * 65504)
    for sequence, n in enumerate(case.lengths.tolist()):
        for t in range(n):
            at = case.block_table[sequence, t // 16].item(), slice(None), t % 16
            case.k_cache[at] = case.k_cache[at].clamp(-1, 1).round()
    assert_right(replace(case, scale=1.0))
    assert_right(replace(case, scale=-1.0))
    huge = replace(case, v_cache=case.v_cache.sign() * 65504, scale=1e-6)
    assert huge.run().isfinite().all()
    assert_right(huge)


def test_a_length_beyond_the_table_is_its_end_on_cuda(device):
    case = make(device, torch.float16, (64,), dim=64)
    case.block_table = case.block_table[:, :4].contiguous()
    if device.type == "cpu":
        case.lengths.fill_(65)
        with pytest.raises(ValueError, match="lengths holds 65 to 65, needs 0 to 64"):
            case.run()
        return
    right = case.run()
    case.lengths.fill_(2**31 - 1)
    assert torch.equal(case.run(), right)


def test_no_sequences(device):
    case = make(device, torch.float16, ())
    assert case.run().shape == (0, 8, 128)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": torch.zeros(11, 7, 128)}, "q has shape [11, 7, 128], needs [sequences, heads, 128]"),
        ({"q": torch.zeros(11, 8, 64)}, "heads a multiple of the cache's 2"),
        ({"q": torch.zeros(88, 128)}, "q has shape [88, 128]"),
        ({"q": torch.zeros(11, 8, 128).half()}, "q is torch.float16 [11, 8, 128] on cpu"),
        ({"q": torch.zeros(11, 8, 256)[..., ::2]}, "strides [2048, 256, 2]"),
        ({"block_table": torch.zeros(11, 4).long()}, "block_table is torch.int64 [11, 4]"),
        ({"block_table": torch.zeros(10, 4).int()}, "needs contiguous torch.int32 [11, 4]"),
        ({"lengths": torch.zeros(11).long()}, "lengths is torch.int64 [11]"),
        ({"lengths": torch.full((11,), -1).int()}, "lengths holds -1 to -1, needs 0 to"),
        ({"sinks": torch.zeros(2)}, "sinks is torch.float32 [2]"),
        ({"window": -1}, "window is -1, soft_cap 0.0"),
        ({"soft_cap": -1.0}, "window is 0, soft_cap -1.0"),
        ({"v_scale": torch.ones(2)}, "v_scale is given for a cache of torch.float32"),
        ({"v_cache": torch.zeros(1)}, "v_cache is torch.float32 [1]"),
    ],
)
def test_refusals(wrong, message):
    case = make(torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(case, **wrong).run()


def test_head_dims_refused(device):
    dim = 512 if device.type == "cpu" else 80
    case = make(device, torch.float16, (3,), dim=dim)
    with pytest.raises(ValueError, match=f"head_dim is {dim}, needs one of"):
        case.run()


def test_opcheck():
    case = make(torch.device("cpu"), torch.float32, (0, 5, 40), dim=64)
    arguments = (case.q, case.k_cache, case.v_cache, case.block_table, case.lengths, case.scale)
    registered = torch.ops.volta.paged_decode.default
    torch.library.opcheck(registered, arguments)
    options = {"window": 7, "soft_cap": 3.0, "sinks": torch.zeros(8)}
    torch.library.opcheck(registered, arguments, options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_graph(cuda, dtype):
    """1000 replays while lengths, tables, queries and the cache change."""
    most = 3008  # all that its blocks hold: no poison in blocks that change hands
    case = make(cuda, dtype, (most,) * 4, spare=0, sinks=torch.zeros(8, device=cuda))
    right = case.run()  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.run()
    graph.replay()
    assert torch.equal(out, right)
    blocks = len(case.k_cache)
    per_sequence = blocks // 4
    for replay in range(1000):
        case.q.normal_()
        case.lengths.copy_(torch.randint(0, most + 1, (4,), device=cuda))
        order = torch.randperm(blocks, device=cuda, dtype=torch.int32)
        case.block_table[:, :per_sequence] = order.view(4, per_sequence)
        graph.replay()
        if replay % 50 == 0:
            assert torch.equal(out, case.run())
            codes = case.k_cache.view(torch.uint8)
            codes.copy_(codes.flip(0))
    assert_right(case)
