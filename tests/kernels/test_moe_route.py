"""Which experts a token gets and by what weights, against a float64 reference."""

import re

import pytest
import torch

from volta_runtime import ops


def scores_of(logits, scoring):
    exact = logits.double()
    return exact.softmax(-1) if scoring == "softmax" else exact.sigmoid()


def choices_of(logits, scoring="softmax", bias=None, groups=0, top_groups=0):
    """What experts are compared by [tokens, n], and the groups' sums [tokens, groups]."""
    choices = scores_of(logits, scoring)
    if bias is not None:
        choices = choices + bias.double()
    if not groups:
        return choices, choices.new_zeros(len(choices), 0)
    members = choices.unflatten(-1, (groups, -1))
    sums = members.sort(-1, descending=True).values[..., :2].sum(-1)
    kept = sums.argsort(dim=-1, descending=True, stable=True)[:, :top_groups]
    limited = torch.full_like(members, -torch.inf)
    for token, some in enumerate(kept):
        limited[token, some] = members[token, some]
    return limited.flatten(1), sums


def expected_route(logits, top_k, *, renormalize, scoring="softmax", scale=1.0, **choosing):
    choices, _ = choices_of(logits, scoring, **choosing)
    experts = choices.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    weights = scores_of(logits, scoring).gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, experts.int()


def clear_logits(tokens, n, top_k, dtype, bias, how):
    """Random logits, none of whose choices float32 could see another way than float64."""
    logits = torch.randn(4 * tokens + 16, n).to(dtype)
    if bias is None and "groups" not in how:
        return logits[:tokens].contiguous()  # the logits decide, also where they are equal
    choosing = {k: v for k, v in how.items() if k in ("scoring", "groups", "top_groups")}
    choices, sums = choices_of(logits, bias=bias, **choosing)
    best = choices.sort(-1, descending=True).values[:, : top_k + 1]
    distances = torch.cat((best.diff(), sums.sort(-1).values.diff()), -1)
    clear = (distances.abs() > 1e-6).all(-1)
    assert clear.sum() >= tokens, f"{int(clear.sum())} of {len(logits)} tokens"
    return logits[clear][:tokens].contiguous()


MODELS = {
    "qwen3": (128, 8, {"renormalize": True}),
    "qwen3-raw": (128, 8, {"renormalize": False}),
    "mixtral": (8, 2, {"renormalize": True}),
    "gpt-oss": (32, 4, {"renormalize": True}),
    "deepseek-v3": (
        256,
        8,
        {"scoring": "sigmoid", "renormalize": True, "groups": 8, "top_groups": 4, "scale": 2.5},
    ),
    "sigmoid-raw": (160, 8, {"scoring": "sigmoid", "renormalize": False}),
    "softmax-groups": (48, 6, {"renormalize": False, "groups": 3, "top_groups": 1, "scale": 16.0}),
    "odd": (77, 5, {"renormalize": True, "groups": 7, "top_groups": 3}),
    "largest": (512, 32, {"renormalize": True, "scoring": "sigmoid"}),
    "most-groups": (512, 32, {"renormalize": True, "groups": 32, "top_groups": 2}),
    "pairs": (64, 2, {"renormalize": True, "groups": 32, "top_groups": 1}),
    "one": (1, 1, {"renormalize": False}),
    "all": (31, 31, {"renormalize": False}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tokens", [1, 37])
def test_route(device, model, tokens, biased, dtype):
    torch.manual_seed(tokens)
    n, top_k, how = MODELS[model]
    # As large as the differences of the scores, so that it changes choices.
    spread = 0.5 if how.get("scoring") == "sigmoid" else 1 / n
    bias = torch.randn(n) * spread if biased else None
    logits = clear_logits(tokens, n, top_k, dtype, bias, how)
    exact, chosen = expected_route(logits, top_k, bias=bias, **how)
    on = None if bias is None else bias.to(device)
    weights, experts = ops.moe_route(logits.to(device), top_k, bias=on, **how)
    assert torch.equal(experts.cpu(), chosen)
    assert (weights.dtype, experts.dtype) == (torch.float32, torch.int32)
    torch.testing.assert_close(weights.cpu().double(), exact, rtol=5e-6, atol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 31, 32, 33, 63, 64, 65, 100, 128, 129, 255, 257, 300, 511])
def test_any_number_of_experts(device, n):
    torch.manual_seed(n)
    top_k = min(n, 1 + n % 32)
    logits = torch.randn(5, n)
    exact, chosen = expected_route(logits, top_k, renormalize=True)
    weights, experts = ops.moe_route(logits.to(device), top_k, renormalize=True)
    assert torch.equal(experts.cpu(), chosen)
    torch.testing.assert_close(weights.cpu().double(), exact, rtol=5e-6, atol=1e-9)


def test_many_tokens(device):
    torch.manual_seed(0)
    logits = torch.randn(4096, 128)
    exact, chosen = expected_route(logits, 8, renormalize=True)
    weights, experts = ops.moe_route(logits.to(device), 8, renormalize=True)
    assert torch.equal(experts.cpu(), chosen)
    torch.testing.assert_close(weights.cpu().double(), exact, rtol=5e-6, atol=1e-9)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("grouping", [{}, {"groups": 8, "top_groups": 3}])
def test_of_equal_choices_the_lower_expert_comes_first(device, scoring, renormalize, grouping):
    torch.manual_seed(1)
    logits = torch.randint(-1, 2, (64, 256)).float()
    logits[0] = 0
    logits[1] = 0.0
    logits[1, ::2] = -0.0
    how = {"scoring": scoring, "renormalize": renormalize, **grouping}
    _, chosen = expected_route(logits, 12, **how)
    assert chosen[0].tolist() == chosen[1].tolist() == list(range(12))
    _, experts = ops.moe_route(logits.to(device), 12, **how)
    assert torch.equal(experts.cpu(), chosen)


def test_logits_decide_where_scores_would_tie(device):
    """Sigmoids of 20 and 30 are both 1 in float32, softmaxes of -200 and -300 beside 0 both 0."""
    logits = torch.tensor([[20.0, 30.0, 25.0, -5.0], [-300.0, -200.0, 0.0, -250.0]], device=device)
    for scoring in ("softmax", "sigmoid"):
        _, experts = ops.moe_route(logits, 3, scoring=scoring, renormalize=True)
        assert experts.tolist() == [[1, 2, 0], [2, 1, 3]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("grouping", [{}, {"groups": 4, "top_groups": 2}])
@pytest.mark.parametrize("biased", [False, True])
def test_nan_and_infinity_never_leave_the_experts(device, scoring, grouping, biased):
    torch.manual_seed(2)
    logits = torch.randn(64, 40)
    kind = torch.randint(0, 4, logits.shape)
    logits[kind == 1] = torch.nan
    logits[(kind == 2) & (torch.arange(64)[:, None] % 2 == 0)] = torch.inf
    logits[(kind == 3) & (torch.arange(64)[:, None] % 3 == 0)] = -torch.inf
    logits[:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -torch.nan])[:, None]
    bias = torch.full((40,), torch.nan, device=device) if biased else None
    _, experts = ops.moe_route(
        logits.to(device), 10, scoring=scoring, renormalize=True, bias=bias, **grouping
    )
    assert experts.min() >= 0
    assert experts.max() < 40
    assert all(len(set(row)) == 10 for row in experts.tolist())


def test_a_nan_is_chosen_last_and_spoils_only_its_token(device):
    logits = torch.tensor([[torch.nan, 1.0, 2.0, torch.nan], [0.0, 1.0, 2.0, 3.0]], device=device)
    weights, experts = ops.moe_route(logits, 3, scoring="sigmoid", renormalize=False)
    assert experts.tolist() == [[2, 1, 0], [3, 2, 1]]
    assert weights.isnan().tolist() == [[False, False, True], [False, False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_extreme_logits(device, dtype):
    lowest, low, high = torch.finfo(dtype).min, -1000.0, 1000.0
    rows = [[high, low, -torch.inf, lowest], [low, low, low, low], [lowest, -torch.inf, low, -5.0]]
    logits = torch.tensor(rows, dtype=dtype, device=device)
    weights, experts = ops.moe_route(logits, 3, renormalize=True)
    assert experts.tolist() == [[0, 1, 3], [0, 1, 2], [3, 2, 0]]
    expected = torch.tensor([[1.0, 0, 0], [1 / 3] * 3, [1.0, 0, 0]])
    torch.testing.assert_close(weights.cpu(), expected)
    # All scores of the second token are 0, and so are its weights.
    weights, _ = ops.moe_route(logits, 3, scoring="sigmoid", renormalize=True)
    assert weights[1].tolist() == [0, 0, 0]
    # A bias chooses experts whose softmax is 0: their weights are still those of their logits.
    bias = torch.tensor([0.0, 5.0, 4.0, 5.0], device=device)
    weights, experts = ops.moe_route(logits, 2, renormalize=True, bias=bias)
    assert experts.tolist() == [[1, 3], [1, 3], [3, 1]]
    assert weights.tolist() == [[1, 0], [0.5, 0.5], [1, 0]]


LOGITS = torch.zeros(4, 16)


@pytest.mark.parametrize(
    ("args", "how", "message"),
    [
        ((torch.zeros(16), 2), {}, "logits has shape [16], needs [tokens, n_experts]"),
        ((torch.zeros(4, 513), 2), {}, "logits has shape [4, 513]"),
        ((torch.zeros(4, 0), 2), {}, "logits has shape [4, 0]"),
        ((LOGITS.double(), 2), {}, "logits is torch.float64 [4, 16] on cpu"),
        ((LOGITS.bfloat16(), 2), {}, "logits is torch.bfloat16 [4, 16] on cpu"),
        ((torch.zeros(16, 4).T, 2), {}, "strides [1, 4]"),
        ((LOGITS, 0), {}, "top_k is 0 of 16 experts, needs 1 to 16"),
        ((LOGITS, 17), {}, "top_k is 17 of 16 experts, needs 1 to 16"),
        ((torch.zeros(4, 64), 33), {}, "top_k is 33 of 64 experts, needs 1 to 32"),
        ((LOGITS, 2), {"scoring": "relu"}, "scoring is 'relu', needs one of softmax, sigmoid"),
        ((LOGITS, 2), {"bias": torch.zeros(15)}, "bias is torch.float32 [15]"),
        ((LOGITS, 2), {"bias": torch.zeros(16).half()}, "bias is torch.float16 [16]"),
        ((LOGITS, 2), {"groups": 3, "top_groups": 1}, "1 of 3 groups of 16 experts for top_k 2"),
        ((LOGITS, 2), {"groups": 16, "top_groups": 4}, "4 of 16 groups of 16 experts"),
        ((LOGITS, 2), {"groups": 4, "top_groups": 5}, "5 of 4 groups"),
        ((LOGITS, 2), {"groups": 4}, "0 of 4 groups"),
        ((LOGITS, 2), {"top_groups": 4}, "4 of 0 groups"),
        ((LOGITS, 5), {"groups": 4, "top_groups": 1}, "1 of 4 groups of 16 experts for top_k 5"),
        ((torch.zeros(1, 132), 2), {"groups": 33, "top_groups": 9}, "needs up to 32 equal groups"),
    ],
)
def test_route_refuses(args, how, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.moe_route(*args, renormalize=True, **how)
