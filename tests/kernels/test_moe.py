"""Combining, and a mixture of experts as a whole, against float64 references."""

import re

import pytest
import torch
from graphs import check_replays

from volta_runtime import ops
from volta_runtime.ops import native

# --- Combining ---------------------------------------------------------------------------------


def tolerance(device):
    """Of one rounding, to the activations' type."""
    fine = {"rtol": 1e-5, "atol": 1e-5}
    return fine if device.type == "cpu" else {"rtol": 2**-11 + 1e-5, "atol": 1e-4}


def activations(device, *shape):
    return torch.randn(*shape).to(device, native.ACTIVATION[device.type])


@pytest.mark.parametrize("tokens", [1, 2, 9, 300])
@pytest.mark.parametrize(
    ("top_k", "hidden"), [(1, 8), (2, 4096), (3, 7), (8, 2880), (5, 1027), (32, 64), (8, 1)]
)
@pytest.mark.parametrize("with_shared", [False, True])
def test_combine(device, tokens, top_k, hidden, with_shared):
    torch.manual_seed(hidden)
    first, count = 10, 30
    experts = torch.randint(0, 50, (tokens, top_k), dtype=torch.int32)
    weights = torch.rand(tokens, top_k)
    y = activations(device, tokens * top_k, hidden)
    shared = activations(device, tokens, hidden) if with_shared else None
    local = (experts >= first) & (experts < first + count)
    exact = (y.cpu().double().unflatten(0, (tokens, top_k)) * (weights * local)[..., None]).sum(1)
    if with_shared:
        exact = exact + shared.cpu().double()
    y[~local.flatten().to(device)] = torch.nan
    weights[~local] = torch.nan
    out = ops.moe_combine(
        y,
        weights.to(device),
        experts.to(device),
        first_expert=first,
        local_experts=count,
        shared=shared,
    )
    assert out.dtype == y.dtype
    torch.testing.assert_close(out.cpu().double(), exact, **tolerance(device))


@pytest.mark.parametrize("with_shared", [False, True])
def test_combine_without_local_assignments(device, with_shared):
    y = torch.full_like(activations(device, 4 * 2, 24), torch.nan)
    experts = torch.full((4, 2), -1, dtype=torch.int32, device=device)
    shared = activations(device, 4, 24) if with_shared else None
    out = ops.moe_combine(
        y,
        torch.ones(4, 2, device=device),
        experts,
        first_expert=0,
        local_experts=8,
        shared=shared,
    )
    assert torch.equal(out, shared if with_shared else torch.zeros_like(out))


@pytest.mark.parametrize("hidden", [9, 16])
def test_combine_sums_in_float32_and_stays_finite(device, hidden):
    """Partial sums beyond float16's largest number, and a last sum beyond it."""
    column = torch.tensor([[60000.0], [60000.0], [-60000.0], [-59999.0]])
    rows = column.expand(-1, hidden).contiguous()
    y = rows.to(device, native.ACTIVATION[device.type])
    experts = torch.zeros(1, 4, dtype=torch.int32, device=device)
    share = {"first_expert": 0, "local_experts": 1}
    sums = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    for weights in sums.to(device):
        out = ops.moe_combine(y, weights[None], experts, **share)
        exact = (y.double() * weights[:, None].double()).sum(0)
        largest = torch.finfo(y.dtype).max
        torch.testing.assert_close(out[0].double(), exact.clamp(-largest, largest))
    y[0] = torch.inf
    assert ops.moe_combine(y, sums[2:].to(device), experts, **share).isinf().all()


@pytest.mark.parametrize("hidden", [16, 17])
def test_combine_writes_all_of_its_memory_and_no_more(device, hidden):
    torch.manual_seed(hidden)
    y, weights = activations(device, 5 * 3, hidden), torch.rand(5, 3, device=device)
    experts = torch.randint(0, 8, (5, 3), dtype=torch.int32, device=device)
    expected = ops.moe_combine(y, weights, experts, first_expert=2, local_experts=4)
    out = torch.full((5 * hidden + 64,), torch.nan, dtype=y.dtype, device=device)
    native.launch("moe_combine", device, y, weights, experts, None, out, 5, 3, hidden, 2, 4)
    assert torch.equal(out[: 5 * hidden].view(5, hidden), expected)
    assert out[5 * hidden :].isnan().all()


# --- The three together ------------------------------------------------------------------------


class DenseExperts:
    """A small mixture in float64; the packed experts' grouped product is played by a loop."""

    def __init__(self, n, hidden, inner):
        self.router = torch.randn(n, hidden).double()
        self.up, self.gate = (torch.randn(n, inner, hidden).double() / hidden**0.5 for _ in "ug")
        self.down = torch.randn(n, hidden, inner).double() / inner**0.5

    def expert(self, e, x):
        return (torch.nn.functional.silu(x @ self.gate[e].T) * (x @ self.up[e].T)) @ self.down[e].T

    def dense(self, x, logits, top_k):
        """Every expert on every token, those not chosen by weight 0."""
        chosen = logits.double().topk(top_k)
        mix = torch.zeros_like(logits, dtype=torch.double)
        mix.scatter_(1, chosen.indices, chosen.values.softmax(-1))
        return sum(mix[:, e, None] * self.expert(e, x) for e in range(len(self.router)))

    def share(self, device, x, logits, top_k, tile, first, count, shared=None):
        """What the rank with the experts [first, first + count) gives."""
        n, dtype = len(self.router), native.ACTIVATION[device.type]
        weights, experts = ops.moe_route(logits.to(device), top_k, renormalize=True)
        order, offsets, tile_expert, tile_row = (
            t.tolist()
            for t in ops.moe_permute(experts, n, tile, first_expert=first, local_experts=count)
        )
        y = torch.full((len(x) * top_k, x.shape[1]), torch.nan, dtype=dtype)
        for e, row in zip(tile_expert, tile_row, strict=True):
            if e < 0:
                break
            rows = torch.tensor(order[row : min(row + tile, offsets[e + 1])])
            y[rows] = self.expert(first + e, x[rows // top_k]).to(dtype)
        return ops.moe_combine(
            y.to(device),
            weights,
            experts,
            first_expert=first,
            local_experts=count,
            shared=None if shared is None else shared.to(device, dtype),
        ).cpu()


def mixture_tolerance(device):
    """Beside the last rounding, the experts' outputs are rounded, in shards the sums too."""
    return {"rtol": 0, "atol": 1e-5 if device.type == "cpu" else 1e-2}


@pytest.mark.parametrize("tokens", [*range(1, 10), 4096])
def test_a_mixture_and_its_shards(device, tokens):
    torch.manual_seed(tokens)
    n, top_k, hidden, tile = 12, 3, 24, 16
    mixture = DenseExperts(n, hidden, 40)
    x = torch.randn(tokens, hidden).double()
    logits = (x @ mixture.router.T).float()
    shared = torch.randn(tokens, hidden)
    exact = mixture.dense(x, logits, top_k)
    close = mixture_tolerance(device)

    whole = mixture.share(device, x, logits, top_k, tile, 0, n, shared)
    torch.testing.assert_close(whole.double(), exact + shared.double(), **close)
    shards = [
        mixture.share(device, x, logits, top_k, tile, first, count)
        for first, count in ((0, 5), (5, 1), (6, 6))
    ]
    torch.testing.assert_close(sum(s.double() for s in shards), exact, **close)


def test_a_mixture_that_uses_one_expert(device):
    torch.manual_seed(0)
    mixture = DenseExperts(8, 16, 16)
    x, logits = torch.randn(50, 16).double(), torch.zeros(50, 8)
    logits[:, 5] = 9
    exact = mixture.expert(5, x)
    for first, count in ((0, 8), (5, 1)):
        out = mixture.share(device, x, logits, 1, 16, first, count)
        torch.testing.assert_close(out.double(), exact, **mixture_tolerance(device))
    assert (mixture.share(device, x, logits, 1, 16, 0, 5) == 0).all()


# --- What torch relies on ----------------------------------------------------------------------


def test_no_tokens(device):
    weights, experts = ops.moe_route(torch.zeros(0, 8, device=device), 2, renormalize=True)
    assert weights.shape == experts.shape == (0, 2)
    y = torch.zeros(0, 16, device=device, dtype=native.ACTIVATION[device.type])
    out = ops.moe_combine(y, weights, experts, first_expert=0, local_experts=8)
    assert out.shape == (0, 16)


def test_opcheck(device):
    torch.manual_seed(0)
    logits, bias = torch.randn(6, 16, device=device), torch.randn(16, device=device)
    y, shared = activations(device, 12, 24), activations(device, 6, 24)
    weights, experts = ops.moe_route(logits, 2, renormalize=True)
    how = {"scoring": "sigmoid", "renormalize": True, "bias": bias, "groups": 4, "top_groups": 2}
    share = {"first_expert": 4, "local_experts": 8}
    for name, args, kwargs in (
        ("moe_route", (logits, 2), {"renormalize": False}),
        ("moe_route", (logits.half(), 2), how),
        ("moe_permute", (experts, 16, 8), {}),
        ("moe_permute", (experts, 16, 8), share),
        ("moe_combine", (y, weights, experts), share),
        ("moe_combine", (y, weights, experts), share | {"shared": shared}),
    ):
        torch.library.opcheck(getattr(torch.ops.volta, name).default, args, kwargs)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 1024])  # one launch of the sort, and three
def test_graph_capture(cuda, tokens):
    torch.manual_seed(tokens)
    n, top_k, share = 64, 8, {"first_expert": 16, "local_experts": 32}
    logits, y = torch.randn(tokens, n, device=cuda), activations(cuda, tokens * top_k, 512)

    def layer():
        weights, experts = ops.moe_route(
            logits, top_k, scoring="sigmoid", renormalize=True, groups=8, top_groups=4
        )
        plan = ops.moe_permute(experts, n, 16, **share)
        return weights, experts, *plan, ops.moe_combine(y, weights, experts, **share)

    def change(i):
        torch.manual_seed(i)
        logits.normal_()
        if i % 3 == 1:
            logits[:, :16] += 100  # nothing is local

    check_replays(layer, change)


# --- Refusals ----------------------------------------------------------------------------------

IDS = torch.zeros(4, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"y": torch.zeros(8)}, "y has shape [8], needs [tokens * top_k, hidden]"),
        ({"y": torch.zeros(8, 0)}, "y has shape [8, 0]"),
        ({"y": torch.zeros(7, 16)}, "y is torch.float32 [7, 16] on cpu"),
        ({"y": torch.zeros(8, 16).half()}, "y is torch.float16 [8, 16] on cpu"),
        ({"weights": torch.zeros(4, 2).half()}, "weights is torch.float16 [4, 2]"),
        ({"weights": torch.zeros(8)}, "weights is torch.float32 [8]"),
        ({"experts": IDS.long()}, "experts is torch.int64 [4, 2]"),
        ({"experts": torch.zeros(4, 33).int()}, "experts has shape [4, 33], needs"),
        ({"experts": torch.zeros(4).int()}, "experts has shape [4], needs"),
        ({"shared": torch.zeros(8, 16)}, "shared is torch.float32 [8, 16]"),
        ({"first_expert": -1}, "8 local experts from -1 on"),
        ({"local_experts": 0}, "0 local experts from 0 on"),
        ({"first_expert": 510}, "8 local experts from 510 on, of 512"),
    ],
)
def test_combine_refuses(wrong, message):
    good = {
        "y": torch.zeros(8, 16),
        "weights": torch.zeros(4, 2),
        "experts": IDS,
        "first_expert": 0,
        "local_experts": 8,
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.moe_combine(**(good | wrong))


def test_the_kernels_check_sizes_themselves():
    """Of the limits on tokens and widths, which no test has memory for."""
    kernels = native.kernels
    no_memory = [0] * 6
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernels.moe_route_cpu(0, 0, 0, 0, 0, 2**27, 16, 16, 0, 1, 0, 0, 1.0, 1)
    with pytest.raises(ValueError, match="no such weight format or kernel variant"):
        kernels.moe_route_cpu(0, 0, 0, 0, 0, 1, 16, 4, 2, 1, 0, 0, 1.0, 1)
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernels.moe_permute_cpu(*no_memory, 32, 0, 8, 16, 9, 1)  # 10 tiles may be needed
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernels.moe_combine_cpu(*no_memory[:5], 1, 1, 2**20 + 1, 0, 1, 1)


@pytest.mark.gpu
def test_misaligned_memory_is_refused(cuda):
    logits = torch.zeros(4 * 16 + 1, device=cuda)[1:].view(4, 16)
    with pytest.raises(ValueError, match=r"logits .* address 4 past a multiple of 16"):
        ops.moe_route(logits, 2, renormalize=True)
    y = torch.zeros(8 * 16 + 1, device=cuda, dtype=torch.float16)[1:].view(8, 16)
    ids, weights = IDS.to(cuda), torch.zeros(4, 2, device=cuda)
    with pytest.raises(ValueError, match=r"y .* address 2 past a multiple of 16"):
        ops.moe_combine(y, weights, ids, first_expert=0, local_experts=8)
