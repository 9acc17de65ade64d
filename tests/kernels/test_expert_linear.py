"""Grouped products of packed experts, and a mixture of experts as a whole, against float64."""

import re
import weakref
from dataclasses import replace

import pytest
import torch
from graphs import check_replays
from weights import Sample, random_sample

from volta_runtime import ops
from volta_runtime.ops import native, packed
from volta_runtime.ops.expert_linear import PackedExperts, Routes, expert_linear, stack_experts

NAMES = ["nvfp4", "mxfp4", "int4_g128", "q4_k", "fp8_block"]
TILES = [1, 2, 8, 16, 32]
silu = torch.nn.functional.silu


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.getfixturevalue("cuda") if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def generator(request):
    return torch.Generator().manual_seed(sum(request.node.name.encode()))


@pytest.fixture
def poison():
    """Memory that torch gives out is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def close(device):
    """Sums are about 1. CUDA multiplies and adds some in FP16, and rounds the results to it."""
    cpu = device.type == "cpu"
    return {"rtol": 1e-5, "atol": 2e-5} if cpu else {"rtol": 5e-3, "atol": 1e-2}


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
            (
                packed.pack(
                    name,
                    s.codes.to(device),
                    *(array.to(device) for array in s.scales),
                    row_scale=s.row_scale.to(device),
                    row_order=row_order,
                )
                for s in samples
            ),
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


# --- Stacking ----------------------------------------------------------------------------------


def weight(n=40, k=64, name="nvfp4", **options):
    s = random_sample(name, n, k, torch.Generator().manual_seed(n + k))
    return packed.pack(name, s.codes, *s.scales, row_scale=s.row_scale, **options)


@pytest.mark.parametrize("row_order", ["plain", "gate_up"])
def test_stacked_matrices_are_themselves(row_order, device, generator):
    parts = [weight(n=70, row_order=row_order) for _ in range(3)]
    stacked = stack_experts(iter(parts), 3).to(device)
    assert isinstance(stacked, PackedExperts)
    assert stacked.device.type == device.type
    assert stacked.nbytes == sum(w.nbytes for w in parts)
    for i, w in enumerate(parts):
        view = stacked.expert(i)
        packed.check_packed(view)
        assert (view.n, view.k, view.row_order) == (w.n, w.k, w.row_order)
        for name in ("data", "row_scale", "half_factor"):
            assert torch.equal(getattr(view, name).cpu(), getattr(w, name))
            start = getattr(stacked, name).untyped_storage().data_ptr()
            assert getattr(view, name).untyped_storage().data_ptr() == start


def test_stacking_asks_for_one_matrix_at_a_time():
    alive = []

    def remembered(w):
        alive.append(weakref.ref(w.data))
        return w

    def matrices():
        for _ in range(5):
            assert all(data() is None for data in alive)
            yield remembered(weight())

    assert stack_experts(matrices(), 5).data.shape == (5, 2, 1, 2304)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (weight(n=41), "expert 1 is nvfp4 [41, 64] in plain order on cpu, those before it are nv"),
        (weight(k=80), "expert 1 is nvfp4 [40, 80]"),
        (weight(name="mxfp4"), "expert 1 is mxfp4 [40, 64]"),
        (weight(row_order="gate_up"), "expert 1 is nvfp4 [40, 64] in gate_up order"),
        (weight(perm=torch.arange(64).int()), "expert 1 has an order of its 64 columns"),
        (replace(weight(), row_scale=torch.zeros(40)), "row_scale is torch.float32 [40]"),
        (None, "there are 1 experts, needs 2"),
    ],
)
def test_stacking_refuses(other, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        stack_experts([weight(), *([] if other is None else [other])], 2)


def test_stacking_refuses_other_numbers():
    with pytest.raises(ValueError, match="more than 1 experts"):
        stack_experts([weight(), weight()], 1)
    with pytest.raises(ValueError, match="there are 0 experts, needs 0, one or more"):
        stack_experts([], 0)


# --- Refusals ----------------------------------------------------------------------------------


def arguments(row_order="plain"):
    """Of four tokens with two of three experts each."""
    chosen = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2]], dtype=torch.int32)
    return {
        "x": torch.randn(4, 64),
        "experts": stack_experts([weight(row_order=row_order)] * 3, 3),
        "routes": sort(chosen, 3, 2, torch.device("cpu")),
        "per_assignment": False,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 80)}, "x has shape [4, 80], needs [tokens, of 8 assignments equally"),
        ({"x": torch.zeros(3, 64)}, "x has shape [3, 64]"),
        ({"x": torch.zeros(9, 64)}, "x has shape [9, 64]"),
        ({"x": torch.zeros(0, 64)}, "x has shape [0, 64]"),
        ({"x": torch.zeros(64)}, "x has shape [64]"),
        ({"per_assignment": True}, "x has shape [4, 64], needs [8 assignments, 64]"),
        ({"x": torch.zeros(4, 64).half()}, "x is torch.float16 [4, 64]"),
        ({"x": torch.zeros(4, 128)[:, ::2]}, "strides [128, 2]"),
        ({"bias": torch.zeros(40)}, "bias is torch.float32 [40]"),
        ({"bias": torch.zeros(3, 40).half()}, "bias is torch.float16 [3, 40]"),
        ({"gated": True}, "gated is True, the experts are in plain order"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        expert_linear(**(arguments() | change))


def test_refuses_both_halves_alone():
    with pytest.raises(ValueError, match="gated is False, the experts are in gate_up order"):
        expert_linear(**arguments("gate_up"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile": 4}, "tile is 4, needs one of 1, 2, 8, 16, 32"),
        ({"tile": 8}, "tile_expert is torch.int32 [7]"),
        ({"tile_row": torch.zeros(6).int()}, "tile_row is torch.int32 [6]"),
        ({"expert_offsets": torch.zeros(3).int()}, "expert_offsets is torch.int32 [3]"),
        ({"expert_offsets": torch.zeros(4)}, "expert_offsets is torch.float32 [4]"),
        ({"sorted_assignments": torch.zeros(8)}, "sorted_assignments is torch.float32 [8]"),
        ({"sorted_assignments": torch.zeros(4, 2).int()}, "sorted_assignments is torch.int32 [4,"),
    ],
)
def test_refuses_other_routes(change, message):
    good = arguments()
    with pytest.raises(ValueError, match=re.escape(message)):
        expert_linear(**(good | {"routes": good["routes"]._replace(**change)}))


def test_refuses_more_tiles_than_a_launch_takes():
    chosen = torch.zeros(65533, 1, dtype=torch.int32)
    routes = sort(chosen, 3, 1, torch.device("cpu"))
    good = arguments() | {"x": torch.zeros(65533, 64), "routes": routes}
    with pytest.raises(ValueError, match="65533 assignments to 3 experts are 65536 tiles of 1"):
        expert_linear(**good)


def op_arguments(row_order="plain"):
    given = arguments(row_order)
    w, gated = given["experts"], row_order == "gate_up"
    return [
        given["x"], w.data, w.row_scale, w.half_factor, w.format, w.n, w.row_order,
        *given["routes"], False, torch.randn(3, 40), gated,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (0, torch.zeros(64), "x has shape [64], needs [rows, k]"),
        (1, torch.zeros(2, 1, 2304).byte(), "data has shape [2, 1, 2304], needs [experts,"),
        (1, torch.zeros(3, 1, 1, 2304).byte(), "data is torch.uint8 [3, 1, 1, 2304]"),
        (2, torch.zeros(3, 40), "row_scale is torch.float32 [3, 40]"),
        (3, torch.zeros(2, 64), "half_factor is torch.float32 [2, 64]"),
        (4, "nvfp5", "there is no weight format 'nvfp5'"),
    ],
)
def test_the_operator_checks_the_packed_tensors_too(at, wrong, message):
    given = op_arguments()
    given[at] = wrong
    with pytest.raises(ValueError, match=re.escape(message)):
        torch.ops.volta.expert_linear(*given)


# --- What torch relies on ----------------------------------------------------------------------


@pytest.mark.parametrize("row_order", ["plain", "gate_up"])
def test_opcheck(row_order, device):
    given = op_arguments(row_order)
    half = native.ACTIVATION[device.type]
    moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in given]
    moved[0], moved[-2] = moved[0].to(half), moved[-2].to(half)
    torch.library.opcheck(torch.ops.volta.expert_linear.default, tuple(moved))


def test_compiled_code_calls_the_operator():
    given = arguments()
    x = given.pop("x")
    compiled = torch.compile(
        lambda x: expert_linear(x, **given) * 2, backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(x), expert_linear(x, **given) * 2)


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


@pytest.mark.gpu
def test_misaligned_memory_is_refused(cuda):
    given = arguments()
    given["experts"] = given["experts"].to(cuda)
    routes = given["routes"]
    given["routes"] = Routes(*(t.to(cuda) for t in routes[:4]), routes.tile)
    given["x"] = torch.zeros(4 * 64 + 1, device=cuda, dtype=torch.float16)[1:].view(4, 64)
    with pytest.raises(ValueError, match=r"x .* address 2 past a multiple of 16"):
        expert_linear(**given)
