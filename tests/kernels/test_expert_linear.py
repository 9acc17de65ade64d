"""Grouped products of packed experts, and a mixture of experts as a whole, against float64."""

from dataclasses import replace

import pytest
import torch
from graphs import check_replays
from weights import Sample, pack, random_sample

from volta_runtime import ops
from volta_runtime.ops import native
from volta_runtime.ops.expert_linear import Routes, expert_linear, stack_experts

NAMES = ["nvfp4", "mxfp4", "int4_g128", "q4_k", "fp8_block"]
TILES = [1, 2, 8, 16, 32]
silu = torch.nn.functional.silu


@pytest.fixture
def poison():
    """Memory that torch gives out is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def close(device):
    """Sums are about 1. CUDA multiplies and adds some in FP16, and rounds the results to it."""
    cpu = device.type == "cpu"
    return {"rtol": 1e-5, "atol": 2e-5} if cpu else {"rtol": 5e-3, "atol": 2e-2}


class Experts:
    """Random matrices, packed and in float64, whose products with normal rows are about 1."""

    def __init__(self, name, count, n, k, device, generator, row_order="plain"):
        samples = [random_sample(name, n, k, generator) for _ in range(count)]
        samples = [
            Sample(name, s.codes, s.scales, s.row_scale / s.exact().square().mean().sqrt() / k**0.5)
            for s in samples
        ]
        self.exact = torch.stack([s.exact() for s in samples])
        self.packed = stack_experts(
            (pack(s, device, row_order=row_order) for s in samples),
            count,
        )

    def product(self, x, chosen, bias=None):
        """What each assignment gives, in float64. x: a row for each."""
        y = x.new_full((len(x), self.exact.shape[1]), torch.nan)
        for e, w in enumerate(self.exact):
            y[chosen == e] = x[chosen == e] @ w.T + (0 if bias is None else bias[e].double())
        return y


def activations(generator, device, *shape):
    return torch.randn(*shape, generator=generator).to(device, native.ACTIVATION[device.type])


def choose(tokens, top_k, experts, generator):
    """Each token's experts, all different, some of them more often than others."""
    liked = torch.rand(experts, generator=generator) * 2
    scores = torch.rand(tokens, experts, generator=generator) + liked
    return scores.topk(top_k).indices.int()


def sort(chosen, experts, tile, device, **share):
    return Routes(*ops.moe_permute(chosen.to(device), experts, tile, **share), tile)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tile", TILES)
def test_products(name, tile, device, generator, poison):
    k = 256 if name in ("q4_k", "int4_g128") else 160
    experts = Experts(name, 10, 45, k, device, generator)
    for tokens in (*range(1, 10), 33, 200):
        for top_k in (1, 2, 8):
            chosen = choose(tokens, top_k, 10, generator)
            routes = sort(chosen, 10, tile, device)
            per_assignment = (tokens + top_k) % 2 == 0
            x = activations(generator, device, tokens * (top_k if per_assignment else 1), k)
            y = expert_linear(x, experts.packed, routes, per_assignment=per_assignment)
            assert y.dtype == x.dtype
            rows = x.double().cpu()
            if not per_assignment:
                rows = rows.repeat_interleave(top_k, 0)
            expected = experts.product(rows, chosen.flatten())
            torch.testing.assert_close(y.double().cpu(), expected, **close(device))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("n", [1, 33, 64])
@pytest.mark.parametrize("k", [16, 1040, 4096])
def test_sizes(tile, n, k, device, generator):
    """One row of W, one group of columns, and long sums, which blocks of the GPU share."""
    experts = Experts("nvfp4", 5, n, k, device, generator)
    bias = activations(generator, device, 5, n)
    for tokens in (1, 40):
        chosen = choose(tokens, 2, 5, generator)
        x = activations(generator, device, tokens, k)
        routes = sort(chosen, 5, tile, device)
        y = expert_linear(x, experts.packed, routes, per_assignment=False, bias=bias)
        rows = x.double().cpu().repeat_interleave(2, 0)
        expected = experts.product(rows, chosen.flatten(), bias.cpu())
        torch.testing.assert_close(y.double().cpu(), expected, **close(device))


@pytest.mark.parametrize("name", ["nvfp4", "q4_k"])
@pytest.mark.parametrize("half", [32, 43, 65])  # rows of gate and of up
@pytest.mark.parametrize("tile", TILES)
def test_gated_on_a_rank_of_a_group(name, half, tile, device, generator, poison):
    """The rank's own rows are written, and no others."""
    first, count, n_experts, top_k = 3, 6, 12, 3
    experts = Experts(name, count, 2 * half, 256, device, generator, "gate_up")
    biases = activations(generator, device, count, 2 * half)
    for tokens in (1, 7, 50):
        for bias in (None, biases):
            chosen = choose(tokens, top_k, n_experts, generator)
            share = {"first_expert": first, "local_experts": count}
            routes = sort(chosen, n_experts, tile, device, **share)
            x = activations(generator, device, tokens, 256)
            y = expert_linear(
                x, experts.packed, routes, per_assignment=False, bias=bias, gated=True
            )
            own = chosen.flatten() - first
            rows = x.double().cpu().repeat_interleave(top_k, 0)
            gate, up = experts.product(rows, own, None if bias is None else bias.cpu()).chunk(2, 1)
            expected = silu(gate) * up  # NaN where the expert is another's, as y is
            assert y.shape == (tokens * top_k, half)
            torch.testing.assert_close(y.double().cpu(), expected, equal_nan=True, **close(device))


@pytest.mark.parametrize("tokens", [1, 4, 150])
def test_one_expert_for_all_and_none_here(tokens, device, generator, poison):
    experts = Experts("int4_g128", 4, 40, 256, device, generator)
    x = activations(generator, device, tokens, 256)
    for expert in (0, 2, 3, 7):
        chosen = torch.full((tokens, 1), expert, dtype=torch.int32)
        routes = sort(chosen, 8, ops.route_tile(tokens, 8), device, local_experts=4)
        y = expert_linear(x, experts.packed, routes, per_assignment=False)
        expected = experts.product(x.double().cpu(), chosen.flatten())
        torch.testing.assert_close(y.double().cpu(), expected, equal_nan=True, **close(device))


class Mixture:
    """A layer of experts on one rank or several."""

    def __init__(self, device, generator, hidden=256, inner=160, experts=12, top_k=3):
        self.experts, self.top_k = experts, top_k
        self.up = Experts("nvfp4", experts, 2 * inner, hidden, device, generator, "gate_up")
        self.down = Experts("mxfp4", experts, hidden, inner, device, generator)

    def exact(self, x, logits):
        """In float64, of all experts, those not chosen by weight 0."""
        best = logits.double().topk(self.top_k)
        mix = torch.zeros_like(logits, dtype=torch.double)
        mix.scatter_(1, best.indices, best.values.softmax(-1))
        gate, up = torch.einsum("tk,enk->etn", x, self.up.exact).chunk(2, -1)
        y = torch.einsum("eti,ehi->eth", silu(gate) * up, self.down.exact)
        return torch.einsum("te,eth->th", mix, y)

    def __call__(self, x, logits, first=0, count=None):
        """What the rank with the experts [first, first + count) gives."""
        share = {"first_expert": first, "local_experts": count or self.experts}
        own = slice(first, first + share["local_experts"])
        weights, chosen = ops.moe_route(logits, self.top_k, renormalize=True)
        tile = ops.route_tile(chosen.numel(), self.experts)
        routes = Routes(*ops.moe_permute(chosen, self.experts, tile, **share), tile)
        up, down = (part(w.packed, own) for w in (self.up, self.down))
        h = ops.expert_linear(x, up, routes, per_assignment=False, gated=True)
        y = ops.expert_linear(h, down, routes, per_assignment=True)
        return ops.moe_combine(y, weights, chosen, **share)


def part(w, own):
    return replace(w, data=w.data[own], row_scale=w.row_scale[own], half_factor=w.half_factor[own])


@pytest.mark.parametrize("tokens", [*range(1, 10), 33, 200])
def test_a_mixture_and_its_shards(tokens, device, generator, poison):
    mixture = Mixture(device, generator)
    x = activations(generator, device, tokens, 256)
    logits = torch.randn(tokens, 12, generator=generator)
    expected = mixture.exact(x.double().cpu(), logits)
    logits = logits.to(device)
    whole = mixture(x, logits)
    shards = [mixture(x, logits, *share).double() for share in ((0, 5), (5, 1), (6, 6))]
    for y in (whole.double(), sum(shards)):
        torch.testing.assert_close(y.cpu(), expected, **close(device))


def test_rows_of_a_tile():
    """One at a decode step of common models, more as experts get more."""
    for top_k, experts in ((2, 8), (4, 32), (4, 128), (8, 128), (8, 256)):
        assert ops.route_tile(top_k, experts) == 1
    assert [ops.route_tile(n, 8) for n in (0, 4, 5, 8, 9, 32, 33, 64, 65, 10**6)] == [
        1, 1, 2, 2, 8, 8, 16, 16, 32, 32,
    ]  # fmt: skip


def test_no_tokens(device, generator):
    experts = Experts("nvfp4", 3, 40, 64, device, generator)
    routes = sort(torch.zeros(0, 2, dtype=torch.int32), 3, 8, device)
    for per_assignment in (False, True):
        x = activations(generator, device, 0, 64)
        y = expert_linear(x, experts.packed, routes, per_assignment=per_assignment)
        assert y.shape == (0, 40)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 4, 16, 200])
@pytest.mark.parametrize("share", [(0, 12), (4, 5)])
def test_graph_capture(tokens, share, cuda, generator):
    mixture = Mixture(cuda, generator, hidden=2048, inner=352)  # blocks share K
    x, logits = activations(generator, cuda, tokens, 2048), torch.randn(tokens, 12, device=cuda)

    def change(i):
        torch.manual_seed(i)
        logits.normal_()
        x.normal_()
        if i % 3 == 1:
            logits[:, :4] += 100  # three of four experts, of which the rank may have none

    check_replays(lambda: (mixture(x, logits, *share),), change)
