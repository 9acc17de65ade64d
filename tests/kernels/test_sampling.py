"""Which tokens sample keeps, and which of them it draws."""

import numpy as np
import pytest
import torch
from sampling_reference import (
    F16,
    INF,
    MASK,
    NAN,
    PLACES,
    deviation,
    kept,
    mixed,
    params,
    philox,
    place_of,
)

from volta_runtime import ops


@pytest.fixture(params=PLACES)
def place(request):
    return place_of(request)


# --- What is kept ------------------------------------------------------------------------------
CUTS = [
    {},
    {"top_k": 7},
    {"top_k": 33},
    {"top_k": 40},
    {"top_k": 1000},
    {"top_p": 0.05},
    {"top_p": 0.5},
    {"top_p": 0.93},
    {"top_p": 0.0},
    {"top_p": 1e-30},
    {"min_p": 0.6},
    {"min_p": 1.0},
    {"min_p": 5.0},
    {"top_k": 20, "top_p": 0.7},
    {"top_k": 20, "top_p": 0.7, "min_p": 0.75},
    {"top_k": 3, "top_p": 0.999},
    {"temperature": 0.4, "top_k": 30, "top_p": 0.8},
    {"temperature": 5.0, "top_p": 0.31},
    {"temperature": 1e30, "top_k": 9, "top_p": 0.5},
    {"temperature": torch.inf, "top_k": 9},
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal"])
def test_what_is_drawn_is_exactly_what_is_kept(place, cuts, kind):
    torch.manual_seed(11)
    row = torch.rand(40)
    if kind == "ties":
        row = (row * 4).round() / 4
    if kind == "equal":
        row = torch.full((40,), -3.25)
    row = place(row)
    rows = 4096  # the rarest token, of a hundredth, is missed with a chance of 1e-18
    tokens, _ = ops.sample(row.expand(rows, 40).contiguous(), *params(rows, row.device, **cuts))
    assert sorted(set(tokens.tolist())) == sorted(kept(row, **cuts)[0].tolist())


@pytest.mark.parametrize("kind", ["equal", "close", "levels"])
@pytest.mark.parametrize(
    "cuts",
    [
        {"top_k": 2500},
        {"top_k": 4000, "top_p": 0.5},
        {"top_p": 0.4},
        {"top_p": 0.9, "temperature": 0.5},
    ],
    ids=str,
)
def test_cuts_through_thousands_of_close_logits(place, kind, cuts):
    """More tokens share a bin than are listed: the search has to read the row."""
    torch.manual_seed(5)
    row = {
        "equal": torch.zeros(5001),
        "close": torch.randn(5001) * 0.003,
        "levels": torch.randint(3, (5001,)) * 0.0625,
    }[kind]
    row = place(row)
    tokens, _ = ops.sample(row.expand(4000, -1).contiguous(), *params(4000, row.device, **cuts))
    ids, _ = kept(row, **cuts)
    rank = torch.full((5001,), 10**6)
    rank[ids] = torch.arange(len(ids))
    ranks = rank[tokens.cpu()]
    assert ranks.max() < len(ids)
    assert ranks.max() >= len(ids) - 40  # all of the last 40 are missed once in e^30 times


@pytest.mark.parametrize(("vocab", "spread"), [(151936, 2.5), (262144, 1.0), (128257, 4.0)])
def test_cuts_in_large_vocabularies(place, vocab, spread):
    torch.manual_seed(vocab)
    row = place(torch.randn(vocab) * spread)
    for cuts in (
        {"top_k": 50},
        {"top_k": 50000},
        {"top_p": 0.9},
        {"top_k": 100, "top_p": 0.8},
        {"top_k": 100000, "top_p": 0.6, "temperature": 1.3},
        {"temperature": 0.1, "top_k": 200},
    ):
        _, probs = kept(row, **cuts)
        tokens, _ = ops.sample(row.expand(24, -1).contiguous(), *params(24, row.device, **cuts))
        # FP32 against FP64: the last of thousands may differ.
        wide = kept(row, **{**cuts, "top_p": min(cuts.get("top_p", 1.0) * (1 + 1e-5), 1.0)})[0]
        assert set(tokens.tolist()) <= set(wide.tolist()), cuts
        assert len(set(tokens.tolist())) > 1 or probs.max() > 0.5, cuts


# --- The draw ----------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["seeds", "steps"])
@pytest.mark.parametrize(
    "cuts", [{}, {"temperature": 0.6, "top_k": 30}, {"top_p": 0.8, "min_p": 0.1}], ids=str
)
def test_the_distribution(place, cuts, over):
    torch.manual_seed(2)
    rows, vocab = 100_000, 61
    row = place(torch.randn(vocab))
    draws = {"seeds": 7, "steps": 9, over: torch.arange(rows)}
    logits = row.expand(rows, vocab).contiguous()
    tokens, _ = ops.sample(logits, *params(rows, row.device, **cuts, **draws))
    assert abs(deviation(tokens, *kept(row, **cuts))) < 4
    # The test tells a temperature that is 3 % off.
    wrong = {**cuts, "temperature": 1.03 * cuts.get("temperature", 1.0)}
    ids, probs = kept(row, **wrong)
    if set(ids.tolist()) == set(kept(row, **cuts)[0].tolist()):
        assert deviation(tokens, ids, probs) > 4


def test_the_reference_generator_gives_the_published_numbers():
    words = [
        np.array([w], dtype=np.uint64) for w in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    ]
    key = [np.array([w], dtype=np.uint64) for w in (0xA4093822, 0x299F31D0)]
    assert [int(w[0]) for w in philox(key, words)] == [
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    ]


def test_the_race_is_as_documented(place):
    torch.manual_seed(3)
    rows, vocab = 64, 1003
    logits = place(torch.randn(rows, vocab))
    arguments = mixed(rows, logits.device, 4)
    tokens = ops.sample(logits, *arguments)[0].tolist()
    for row in range(rows):
        temperature, top_k, top_p, min_p, seed, step = (a[row].item() for a in arguments)
        if temperature == 0:
            assert tokens[row] == kept(logits[row])[0][0]
            continue
        ids, probs = kept(logits[row], temperature, top_k, top_p, min_p)
        block = np.arange(0, vocab, 4, dtype=np.uint64) // np.uint64(4)
        same = [np.full_like(block, w) for w in (0, step & MASK, step >> 32 & MASK)]
        key = [np.full_like(block, w) for w in (seed & MASK, seed >> 32 & MASK)]
        words = np.stack(philox(key, (block, *same)), 1).reshape(-1)[:vocab]
        times = -np.log1p(-(words.astype(np.float64) + 0.5) / 2**32)[ids.numpy()] / probs.numpy()
        assert tokens[row] == ids[times.argmin()], row


def test_a_row_alone_gives_the_same_as_in_a_batch(place):
    torch.manual_seed(6)
    rows = 48
    logits = place(torch.randn(rows, 4099) * 3)
    arguments = mixed(rows, logits.device, 7)
    tokens, logprobs = ops.sample(logits, *arguments)
    for row in range(rows):
        alone = ops.sample(
            logits[row : row + 1].clone(), *(a[row : row + 1].clone() for a in arguments)
        )
        assert (alone[0].item(), alone[1].item()) == (tokens[row].item(), logprobs[row].item())
    order = torch.randperm(rows).to(logits.device)
    again = ops.sample(logits[order], *(a[order] for a in arguments))
    assert torch.equal(again[0], tokens[order])
    assert torch.equal(again[1], logprobs[order])


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "vocab"), [(512, 1000), (128, 32003), (64, 151936)])
def test_cuda_draws_what_the_cpu_draws(cuda, rows, vocab):
    torch.manual_seed(vocab)
    logits = torch.randn(rows, vocab) * 3
    arguments = mixed(rows, "cpu", vocab)
    tokens, logprobs = ops.sample(logits, *arguments)
    on_cuda = ops.sample(logits.to(cuda), *(a.to(cuda) for a in arguments))
    assert torch.equal(on_cuda[0].cpu(), tokens)  # the arithmetic is the same to the last bit
    torch.testing.assert_close(on_cuda[1].cpu(), logprobs, rtol=0, atol=2e-5)
    halves = logits.to(cuda, F16)
    from_half = ops.sample(halves, *(a.to(cuda) for a in arguments))
    from_float = ops.sample(halves.float(), *(a.to(cuda) for a in arguments))
    assert torch.equal(from_half[0], from_float[0])


# --- Extremes ----------------------------------------------------------------------------------
@pytest.mark.parametrize("vocab", [1, 2, 3, 5, 1023, 1025])
def test_greedy_takes_the_first_of_the_largest(place, vocab):
    torch.manual_seed(vocab)
    logits = place(torch.randn(9, vocab).mul(2).round())
    tokens, logprobs = ops.sample(logits, *params(9, logits.device, temperature=0.0))
    exact = logits.double().log_softmax(-1)
    # torch.argmax promises nothing of ties
    first = (logits == logits.amax(-1, keepdim=True)).int().cpu().numpy().argmax(-1)
    assert tokens.tolist() == first.tolist()
    torch.testing.assert_close(
        logprobs.double(), exact.gather(1, tokens[:, None])[:, 0], rtol=0, atol=1e-5
    )
    least = params(9, logits.device, temperature=1e-6, top_p=0.1)
    assert torch.equal(ops.sample(logits, *least)[0], tokens)


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0])
@pytest.mark.parametrize(
    "cuts", [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 2, "top_p": 0.9}], ids=str
)
@pytest.mark.parametrize(
    ("row", "possible"),
    [
        ([-INF, -INF, -5.0, -INF], {2}),
        ([NAN, -INF, NAN, 1.0, NAN], {3}),
        ([0.0, INF, 60000.0, NAN], {1}),
        ([0.0, INF, 1.0, INF, -INF], {1, 3}),
        ([-60000.0, -65504.0, -INF], {0}),
        ([-0.0, 0.0, -100.0], {0, 1}),
        ([3.0], {0}),
        ([-INF], {-1}),
        ([NAN, -INF, NAN], {-1}),
    ],
    ids=str,
)
def test_logits_that_are_hardly_numbers(place, row, possible, cuts, temperature):
    logits = place(torch.tensor(row)).expand(200, -1).contiguous()
    arguments = params(200, logits.device, temperature=temperature, **cuts)
    tokens, logprobs = ops.sample(logits, *arguments)
    assert set(tokens.tolist()) == (possible if temperature else {min(possible)})
    assert torch.equal(logprobs.isnan(), tokens < 0)
    if len(possible) == 1 and possible != {-1}:
        assert torch.equal(logprobs, torch.zeros_like(logprobs))


@pytest.mark.parametrize("temperature", [1e10, 3e38, INF])
def test_a_huge_temperature_draws_anything_but_minus_infinity(place, temperature):
    logits = place(torch.tensor([-60000.0, -INF, 3.0, NAN, 60000.0])).expand(200, -1).contiguous()
    tokens, _ = ops.sample(logits, *params(200, logits.device, temperature=temperature))
    assert set(tokens.tolist()) == {0, 2, 4}


def test_one_hot_and_tiny_masses(place):
    logits = torch.full((300, 777), -40.0)
    logits[:, 500] = 0
    logits = place(logits)
    tokens, _ = ops.sample(logits, *params(300, logits.device, top_k=500))
    assert set(tokens.tolist()) == {500}


def test_odd_parameters_are_off(place):
    torch.manual_seed(1)
    logits = place(torch.randn(64, 33))
    plain = ops.sample(logits, *params(64, logits.device))[0]
    for off in (
        {"top_k": -1},
        {"top_k": 2**31 - 1},
        {"top_p": 2.0},
        {"top_p": NAN},
        {"min_p": -1.0},
    ):
        assert torch.equal(ops.sample(logits, *params(64, logits.device, **off))[0], plain), off
    greedy = ops.sample(logits, *params(64, logits.device, temperature=0.0))[0]
    for sure in ({"temperature": NAN}, {"temperature": -1.0}, {"top_k": 1}, {"top_p": -1.0}):
        assert torch.equal(ops.sample(logits, *params(64, logits.device, **sure))[0], greedy), sure
