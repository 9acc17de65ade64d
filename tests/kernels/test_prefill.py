"""Attention of prompt chunks over a paged cache, against a float64 reference of its own."""

import copy
import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from volta_runtime import ops

# Of a row's largest output. CPU: FP32. CUDA: FP16 probabilities and results.
TOLERANCE = {"cpu": 1e-5, "cuda": 2e-3}
ACTIVATION = {"cpu": torch.float32, "cuda": torch.float16}
NOWHERE = -(2**30)  # a block number that no kernel survives using
TYPES = [torch.float16, torch.float8_e5m2, torch.int8]


@dataclass(frozen=True)
class Prompt:
    """Chunks and the caches they see. Whatever no query may see is NaN, or NOWHERE."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    query_offsets: Tensor
    lengths: Tensor
    max_query: int
    window: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def scale(self):
        return self.q.shape[2] ** -0.5

    def run(self):
        return ops.paged_prefill(
            self.q, self.k_cache, self.v_cache, self.block_table, self.query_offsets, self.lengths,
            self.scale, self.max_query, window=self.window, soft_cap=self.soft_cap,
            sinks=self.sinks, k_scale=self.k_scale, v_scale=self.v_scale,
        )  # fmt: skip

    def exact(self):
        """The result [tokens, heads, head_dim] in float64."""
        q = self.q.double().cpu()
        group = q.shape[1] // self.k_cache.shape[1]
        out = torch.zeros_like(q)
        offsets, lengths = self.query_offsets.tolist(), self.lengths.tolist()
        for s, length in enumerate(lengths):
            chunk = q[offsets[s] : offsets[s + 1]]
            position = torch.arange(length - len(chunk), length)[:, None]
            token = torch.arange(length)
            hidden = token > position
            if self.window:
                hidden |= token <= position - self.window
            k = _rows(self.k_cache, self.k_scale, self.block_table[s], token)
            v = _rows(self.v_cache, self.v_scale, self.block_table[s], token)
            k, v = (x.nan_to_num().repeat_interleave(group, 0) for x in (k, v))
            logits = torch.einsum("qhd,hkd->hqk", chunk, k) * self.scale
            if self.soft_cap:
                logits = self.soft_cap * (logits / self.soft_cap).tanh()
            logits = logits.masked_fill(hidden, -torch.inf)
            if self.sinks is not None:
                sinks = self.sinks.double().cpu()[:, None, None].expand(-1, len(chunk), 1)
                logits = torch.cat((logits, sinks), -1)
            weights = logits.softmax(-1)[..., :length]
            out[offsets[s] : offsets[s + 1]] = torch.einsum("hqk,hkd->qhd", weights, v)
        return out


def _rows(cache, scale, table, token):
    """Keys or values [kv_heads, tokens, head_dim] in float64."""
    size = cache.shape[2]
    block = table.cpu().long()[token // size].clamp(min=0)
    rows = cache.cpu().to(torch.float64)[block, :, token % size].transpose(0, 1)
    return rows if scale is None else rows * scale.double().cpu()[:, None, None]


def prompt(
    device, chunks, contexts, *, dim=128, group=4, kv_heads=2, dtype=torch.float16, block=16,
    window=0, soft_cap=0.0, sinks=False, amplitude=1.0, seed=0,
):  # fmt: skip
    """A random Prompt: chunks[s] tokens of sequence s come after contexts[s] others."""
    rng = torch.Generator().manual_seed(seed)
    lengths = [a + b for a, b in zip(chunks, contexts, strict=True)]
    used = [-(-length // block) for length in lengths]
    order = iter(torch.randperm(sum(used) + 2, generator=rng).tolist())
    k, v = torch.full((2, sum(used) + 2, kv_heads, block, dim), torch.nan)
    table = torch.full((len(chunks), max(used) + 2), NOWHERE, dtype=torch.int32)
    for s, length in enumerate(lengths):
        for i in range(max(contexts[s] - window + 1, 0) // block if window else 0, used[s]):
            table[s, i] = number = next(order)
            some = slice(0, min(block, length - i * block))
            for cache in (k, v):
                cache[number, :, some] = torch.randn(kv_heads, block, dim, generator=rng)[:, some]
    scales = [None, None]
    if dtype == torch.int8:
        scales = [(torch.rand(kv_heads, generator=rng) + 0.5) / 40 for _ in range(2)]
        k, v = (
            (x / scale[:, None, None]).round().clamp(-128, 127).nan_to_num(111)
            for x, scale in zip((k, v), scales, strict=True)
        )
    offsets = torch.tensor([0, *chunks]).cumsum(0).int()
    q = torch.randn(sum(chunks), kv_heads * group, dim, generator=rng) * amplitude
    made = Prompt(
        q.to(ACTIVATION[device.type]), k.to(dtype), v.to(dtype), table, offsets,
        torch.tensor(lengths, dtype=torch.int32), max(chunks), window, soft_cap,
        torch.randn(kv_heads * group, generator=rng) * 2 if sinks else None, *scales,
    )  # fmt: skip
    return replace(
        made,
        **{name: x.to(device) for name, x in vars(made).items() if isinstance(x, Tensor)},
    )


def worst(actual, exact):
    """The largest error relative to the largest output of its row (a normal FP16 at least)."""
    error = (actual.double().cpu() - exact).abs().amax(-1)
    return (error / exact.abs().amax(-1).clamp(min=2**-14)).max().item()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("group", [1, 4, 7, 8])
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_every_kernel(device, dim, group, dtype):
    # Two blocks of rows with groups of 7 and 8, and an empty chunk in the middle.
    made = prompt(device, [21, 1, 0, 9], [3, 70, 40, 0], dim=dim, group=group, dtype=dtype)
    out = made.run()
    assert out.dtype == made.q.dtype and out.shape == made.q.shape
    assert worst(out, made.exact()) < TOLERANCE[device.type]


@pytest.mark.parametrize("context", [0, 1, 33, 500])
@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 200])
def test_chunks_and_contexts(device, chunk, context):
    made = prompt(device, [chunk], [context], dim=64, kv_heads=1, block=48)
    assert worst(made.run(), made.exact()) < TOLERANCE[device.type]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("window", [1, 5, 32, 100])
def test_a_window_cuts_and_what_is_behind_it_is_not_read(device, window, dtype):
    made = prompt(device, [65, 3], [190, 31], dtype=dtype, window=window)
    assert (made.block_table[0, 0] == NOWHERE) == (window < 175)
    assert worst(made.run(), made.exact()) < TOLERANCE[device.type]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("soft_cap", [0.5, 30.0])
def test_soft_cap_and_sinks(device, soft_cap, sinks):
    made = prompt(device, [40, 17], [50, 0], amplitude=20.0, soft_cap=soft_cap, sinks=sinks)
    assert worst(made.run(), made.exact()) < 2 * TOLERANCE[device.type]


def test_sinks_of_any_size(device):
    made = prompt(device, [9], [30], kv_heads=1, sinks=True, window=20)
    made.sinks.copy_(torch.tensor([-torch.inf, -1e30, 40.0, 0.0]))
    assert worst(made.run(), made.exact()) < TOLERANCE[device.type]
    made.sinks.fill_(1e30)
    assert (made.run() == 0).all()


@pytest.mark.parametrize("dim", [64, 256])
def test_large_logits(device, dim):
    # Some hundreds: exp() of any would overflow, and all but a few probabilities vanish.
    made = prompt(device, [65], [100], dim=dim, amplitude=100.0)
    assert worst(made.run(), made.exact()) < 2e-3


@pytest.mark.parametrize("value", [6e4, -6e4])
def test_the_largest_keys_and_values(device, value):
    made = prompt(device, [33], [20], kv_heads=1)
    made.k_cache.fill_(value)  # all alike, so each query averages the values that it sees
    made.v_cache.copy_(made.v_cache.clamp(-1, 1) * value)
    assert worst(made.run(), made.exact()) < TOLERANCE[device.type]


def test_a_float32_cache_on_the_cpu():
    made = prompt(torch.device("cpu"), [20, 3], [13, 40], dtype=torch.float32)
    assert worst(made.run(), made.exact()) < TOLERANCE["cpu"]


def test_many_sequences_of_many_lengths(device):
    chunks = [5 * i % 23 for i in range(40)]
    made = prompt(device, chunks, [11 * i % 97 for i in range(40)], dim=64, group=2, block=32)
    assert worst(made.run(), made.exact()) < TOLERANCE[device.type]


def test_tokens_of_no_chunk_and_queries_without_keys_give_zeros(device):
    made = prompt(device, [6, 4], [10, 20], kv_heads=1)
    first, end = 2, 5  # the chunks now are the tokens 2 to 4 and 5 to 8
    made.query_offsets.copy_(torch.tensor([first, end, end + 4]))
    out = made.run()
    assert worst(out, made.exact()) < TOLERANCE[device.type]
    assert (out[:first] == 0).all() and (out[end + 4 :] == 0).all()

    made.lengths.copy_(torch.tensor([0, 2]))  # fewer than the chunks'
    out = made.run()
    assert (out[: end + 2] == 0).all()
    assert out.isfinite().all() and (out[end + 2 : end + 4] != 0).any()


def test_a_nan_stays_in_its_row(device):
    made = prompt(device, [40], [7])
    expected = made.run()
    made.q[20, 3, 5] = torch.nan
    out = made.run()
    assert out[20, 3].isnan().all()
    out[20, 3] = expected[20, 3]
    assert torch.equal(out, expected)


def test_any_number_of_threads_gives_the_same_bits():
    made = prompt(torch.device("cpu"), [50, 3], [20, 100])
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results += [made.run() for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(out, results[0]) for out in results)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_a_captured_graph_follows_its_inputs(cuda, dtype):
    rounds = [
        prompt(cuda, chunks, contexts, dtype=dtype, window=90, sinks=True, seed=seed)
        for seed, (chunks, contexts) in enumerate(
            [([1, 1, 1], [5, 300, 64]), ([70, 0, 3], [0, 3, 200]), ([8, 90, 33], [250, 0, 31])]
        )
    ]
    most = {name: max(getattr(r, name).shape[0] for r in rounds) for name in ("q", "k_cache")}
    columns = max(r.block_table.shape[1] for r in rounds)
    graphed = replace(
        copy.deepcopy(rounds[0]),  # what is loaded later must not change the first round
        q=rounds[0].q.new_zeros(most["q"], *rounds[0].q.shape[1:]),
        k_cache=rounds[0].k_cache.new_zeros(most["k_cache"], *rounds[0].k_cache.shape[1:]),
        v_cache=rounds[0].v_cache.new_zeros(most["k_cache"], *rounds[0].v_cache.shape[1:]),
        block_table=rounds[0].block_table.new_zeros(3, columns),
        max_query=max(r.max_query for r in rounds),
    )

    def load(made):
        for name, x in vars(graphed).items():
            if isinstance(x, Tensor):
                new = getattr(made, name)
                x[tuple(slice(n) for n in new.shape)].copy_(new)

    load(rounds[0])
    graphed.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = graphed.run()
    for i in range(1000):
        made = rounds[i % 3]
        if i % 50 < 3:
            load(made)
        graph.replay()
        if i % 50 < 3:
            tokens = made.q.shape[0]
            assert torch.equal(out[:tokens], made.run()), i
            assert worst(out[:tokens], made.exact()) < TOLERANCE["cuda"], i


def test_the_operator_is_sound():
    for dtype in (torch.float16, torch.int8):
        made = prompt(torch.device("cpu"), [3, 0, 5], [4, 2, 20], dtype=dtype, sinks=True)
        torch.library.opcheck(
            torch.ops.volta.paged_prefill,
            (made.q, made.k_cache, made.v_cache, made.block_table, made.query_offsets,
             made.lengths, made.scale, made.max_query),
            {"window": 7, "soft_cap": 20.0, "sinks": made.sinks, "k_scale": made.k_scale,
             "v_scale": made.v_scale},
        )  # fmt: skip


INT = torch.int32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": torch.zeros(8, 8, 64)}, "q has shape [8, 8, 64], needs [tokens, heads, 128]"),
        ({"q": torch.zeros(8, 7, 128)}, "heads a multiple of the cache's 2"),
        ({"q": torch.zeros(8, 8, 128).half()}, "q is torch.float16 [8, 8, 128] on cpu"),
        ({"q": torch.zeros(8, 8, 256)[..., ::2]}, "q is torch.float32 [8, 8, 128] on cpu"),
        ({"q": torch.zeros(8, 8, 128, device="meta")}, "q is torch.float32 [8, 8, 128] on meta"),
        ({"k_cache": torch.zeros(5, 2, 16, 128)}, "v_cache is torch.float16"),
        ({"k_cache": torch.zeros(5, 2, 8, 128).half()}, "block_size a multiple of 16"),
        ({"block_table": torch.zeros(6, dtype=INT)}, "needs [sequences, max_blocks]"),
        ({"block_table": torch.zeros(2, 3)}, "needs contiguous torch.int32 [2, 3]"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int64)}, "block_table is torch.int64"),
        ({"query_offsets": torch.zeros(2, dtype=INT)}, "needs contiguous torch.int32 [3]"),
        ({"query_offsets": torch.tensor([0, 3, 9], dtype=INT)}, "holds 0 to 9, needs 0 to 8"),
        ({"query_offsets": torch.tensor([0, 5, 3], dtype=INT)}, "holds -2 to 5, needs 0 to 5"),
        ({"max_query": 4}, "holds 3 to 5, needs 0 to 4"),
        ({"max_query": 0}, "max_query is 0 for 4 heads a KV head"),
        ({"max_query": 2**28}, "their product needs 1 to 1073741823"),
        ({"lengths": torch.tensor([7, 65], dtype=INT)}, "lengths holds 7 to 65, needs 0 to 64"),
        ({"lengths": torch.zeros(3, dtype=INT)}, "lengths is torch.int32 [3]"),
        ({"window": -1}, "window is -1"),
        ({"soft_cap": -1.0}, "soft_cap -1.0"),
        ({"sinks": torch.zeros(2)}, "sinks is torch.float32 [2]"),
        ({"k_scale": torch.ones(2)}, "k_scale is given for a cache of torch.float16"),
    ],
)
def test_refusals(wrong, message):
    made = prompt(torch.device("cpu"), [3, 5], [4, 20])
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(made, **wrong).run()


def test_a_foreign_head_dimension_is_refused():
    made = prompt(torch.device("cpu"), [3], [4], dim=80)
    with pytest.raises(ValueError, match=r"head_dim is 80, needs one of \(64, 96, 128, 192, 256\)"):
        made.run()


def test_the_kernel_checks_sizes_itself():
    with pytest.raises(ValueError, match="the kernel does not take these sizes"):
        ops.native.kernels.paged_prefill_cpu(*[0] * 10, 1, 1, 3, 2, 64, 16, 1, 0, 1.0, 0.0, 0, 1)
    with pytest.raises(ValueError, match="no such"):
        ops.native.kernels.paged_prefill_cpu(*[0] * 10, 1, 1, 4, 2, 64, 16, 1, 0, 1.0, 0.0, 9, 1)
