"""Sampling against float64 references that sort, and a Philox written over NumPy integers."""

import re

import numpy as np
import pytest
import torch

from volta_runtime import ops

F32, F16, I32, I64 = torch.float32, torch.float16, torch.int32, torch.int64
MASK = 0xFFFFFFFF


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.getfixturevalue("cuda") if request.param == "cuda" else torch.device("cpu")


@pytest.fixture(
    params=[
        "cpu",
        pytest.param("cuda-float32", marks=pytest.mark.gpu),
        pytest.param("cuda-float16", marks=pytest.mark.gpu),
    ]
)
def place(request):
    """place(logits) moves and converts logits as one kind of kernel takes them."""
    if request.param == "cpu":
        return lambda logits: logits.float()
    cuda = request.getfixturevalue("cuda")
    return lambda logits: logits.to(cuda, F16 if request.param.endswith("16") else F32)


def params(rows, device, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=None, steps=None):
    """The arguments of sample after logits; a number stands for that number in every row."""

    def column(value, dtype):
        value = torch.as_tensor(value, dtype=dtype)
        return value.expand(rows).contiguous().to(device)

    return (
        column(temperature, F32),
        column(top_k, I32),
        column(top_p, F32),
        column(min_p, F32),
        column(torch.arange(rows) if seeds is None else seeds, I64),
        column(0 if steps is None else steps, I64),
    )


def mixed(rows, device, seed):
    """Parameters of all kinds, mixed."""
    g = torch.Generator().manual_seed(seed)

    def pick(*values):
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=g)]

    return params(
        rows,
        device,
        pick(0.0, 0.3, 0.7, 1.0, 1.5, 3.0),
        pick(0, 0, 1, 5, 40, 1000, 10**9),
        pick(1.0, 1.0, 0.3, 0.9, 0.99),
        pick(0.0, 0.0, 0.02, 0.3),
        torch.randint(-(2**62), 2**62, (rows,), generator=g),
        torch.randint(0, 100000, (rows,), generator=g),
    )


def kept(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The ids that may be drawn, likeliest first, and their exact probabilities."""
    logits = row.double().cpu().nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    logits, ids = logits.sort(descending=True, stable=True)
    weights = ((logits - logits[0]) / np.float32(temperature).item()).exp()
    if top_k > 0:
        weights = weights[:top_k]
    if top_p < 1:
        before = weights.cumsum(0) - weights
        size = int((before < np.float32(top_p).item() * weights.sum() * (1 - 1e-12)).sum())
        weights = weights[: max(size, 1)]
    weights = weights[weights >= min(np.float32(min_p).item(), 1.0)]
    weights = weights[weights > 0]
    return ids[: len(weights)], weights / weights.sum()


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
def deviation(tokens, ids, probs):
    """How many sigmas a chi-square over the tokens lies off, by Wilson and Hilferty."""
    expected = probs * tokens.numel()
    assert expected.min() > 5
    counts = torch.bincount(tokens.cpu(), minlength=int(ids.max()) + 1)[ids]
    assert counts.sum() == tokens.numel()
    chi2, df = ((counts - expected) ** 2 / expected).sum().item(), len(ids) - 1
    return ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / (2 / (9 * df)) ** 0.5


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


def philox(key, counter):
    """Philox4x32-10 over arrays; key: two, counter: four uint64 arrays of 32-bit numbers."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & MASK, (a >> np.uint64(32)) ^ c3 ^ k1, a
        c3 = c3 & MASK
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & MASK, (k1 + np.uint64(0xBB67AE85)) & MASK
    return c0, c1, c2, c3


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
    tokens, _ = ops.sample(logits, *arguments)
    for row in range(rows):
        temperature, top_k, top_p, min_p, seed, step = (a[row].item() for a in arguments)
        if temperature == 0:
            assert tokens[row] == logits[row].argmax()
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


INF = torch.inf
NAN = torch.nan


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


# --- Log-probabilities -------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 7), (5, 4099), (2, 151936), (300, 64)])
def test_logprobs(place, rows, vocab):
    torch.manual_seed(rows * vocab)
    logits = place(torch.randn(rows, vocab).mul(4))
    exact = logits.double().log_softmax(-1).cpu()
    for n in {1, min(5, vocab), min(20, vocab)}:
        values, ids = ops.top_logprobs(logits, n)
        order = logits.double().cpu().sort(dim=-1, descending=True, stable=True)[1][:, :n]
        assert torch.equal(ids.cpu(), order)
        torch.testing.assert_close(values.double().cpu(), exact.gather(1, order), rtol=0, atol=2e-5)
    ids = torch.randint(vocab, (rows, 3))
    values = ops.token_logprobs(logits, ids.to(logits.device)).double().cpu()
    torch.testing.assert_close(values, exact.gather(1, ids), rtol=0, atol=2e-5)
    tokens, logprobs = ops.sample(logits, *params(rows, logits.device, temperature=2.0, top_k=9))
    torch.testing.assert_close(
        logprobs.double().cpu(), exact.gather(1, tokens.cpu()[:, None])[:, 0], rtol=0, atol=2e-5
    )


def test_top_logprobs_where_one_thread_owns_the_largest(place):
    """Groups that are 1024 apart belong to one thread."""
    logits = torch.zeros(2, 100_000)
    for wide in (4, 8):
        for i in range(12):
            logits[:, 5 * wide + i * 1024 * wide] = 20 - i
    logits = place(logits)
    order = logits.cpu().sort(dim=-1, descending=True, stable=True)[1][:, :20]
    assert torch.equal(ops.top_logprobs(logits, 20)[1].cpu(), order)


def test_logprobs_of_what_is_no_number(place):
    logits = place(torch.tensor([[1.0, -INF, NAN, 0.0], [NAN, -INF, NAN, -INF], [0, INF, INF, 1]]))
    values, ids = ops.top_logprobs(logits, 4)
    exact = torch.tensor([1.0, 0.0]).log_softmax(0)
    assert ids.tolist() == [[0, 3, 1, 2], [0, 1, 2, 3], [1, 2, 3, 0]]
    torch.testing.assert_close(values[0].cpu(), torch.tensor([*exact, -INF, -INF]))
    assert values[1].isnan().all()
    torch.testing.assert_close(values[2, :2].cpu(), torch.full((2,), 0.5).log())
    ids = torch.tensor([[3, -1], [0, 4], [2, 4]], device=logits.device)
    nan = ops.token_logprobs(logits, ids).isnan().tolist()
    assert nan == [[False, True], [True, True], [False, True]]


# --- What is done to logits --------------------------------------------------------------------
def penalised(logits, counts, prompt, slots, repetition, frequency, presence):
    exact = logits.double().cpu()
    for row, slot in enumerate(slots.tolist()):
        if slot < 0 or slot >= len(counts):
            continue
        count, x = counts[slot].double().cpu(), exact[row].clone()
        seen = (count > 0) | prompt[slot].cpu()
        r = repetition[row].double().cpu()
        x = torch.where(seen, torch.where(x > 0, x / r, x * r), x)
        x = x - frequency[row].double().cpu() * count
        exact[row] = x - presence[row].double().cpu() * (count > 0)
    return exact


@pytest.mark.parametrize("vocab", [1, 5, 1000, 4096, 16391])
def test_penalties(place, vocab):
    torch.manual_seed(vocab)
    rows, slots = 9, 12
    around = place(torch.randn(rows + 2, vocab) * 5)
    if around.device.type == "cuda" and vocab % 8:
        around = torch.cat((around, around[:6]))  # a slice of it would not be aligned
        logits, border = around, around[:0]
    else:
        logits, border = around[1:-1], around[[0, -1]].clone()
    rows, device = logits.shape[0], logits.device
    logits[:, ::7] = -INF
    counts = torch.randint(-6, 4, (slots, vocab), dtype=I32).clamp(min=0).to(device)
    prompt = (torch.rand(slots, vocab) < 0.2).to(device)
    row_slots = torch.randperm(rows + slots)[:rows].to(device, I32) % (slots + 1)
    row_slots[4], row_slots[5] = -1, slots
    repetition = (torch.rand(rows) + 0.6).to(device)
    frequency, presence = (
        (torch.rand(rows) * 4 - 2).to(device),
        (torch.rand(rows) * 4 - 2).to(device),
    )
    repetition[6], frequency[6], presence[6] = 1, 0, 0
    before = logits.clone()
    ops.apply_penalties(logits, counts, prompt, row_slots, repetition, frequency, presence)
    exact = penalised(before, counts, prompt, row_slots, repetition, frequency, presence)
    rtol = 1e-6 if logits.dtype == F32 else 1e-3
    torch.testing.assert_close(logits.double().cpu(), exact, rtol=rtol, atol=rtol)
    assert torch.equal(logits[4:7], before[4:7])
    if len(border):
        assert torch.equal(around[[0, -1]], border)


def test_counting(device):
    counts = torch.zeros(3, 5, dtype=I32, device=device)
    slots = torch.tensor([2, 0, -1, 2, 3, 2, 1, 1], dtype=I32, device=device)
    tokens = torch.tensor([4, 0, 0, 4, 0, 1, -1, 5], device=device)
    for _ in range(3):
        ops.count_tokens(counts, slots, tokens)
    assert counts.tolist() == [[3, 0, 0, 0, 0], [0] * 5, [0, 3, 0, 0, 6]]


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 5000])
def test_bias_and_mask(place, vocab):
    torch.manual_seed(vocab)
    rows = 6
    logits = place(torch.randn(rows, vocab))
    ids = torch.rand(rows, vocab).argsort(-1)[:, : min(vocab, 40)].to(I32)
    ids[0] = -1
    ids[1, -1] = vocab
    values = torch.randn(ids.shape) * 50
    allowed = torch.rand(rows, vocab) < 0.5
    allowed[2] = True
    bits = torch.nn.functional.pad(allowed, (0, -vocab % 32)).view(rows, -1, 32).long()
    words = (bits << torch.arange(32)).sum(-1).to(torch.uint32).view(I32)
    exact = logits.double().cpu()
    valid = (ids >= 0) & (ids < vocab)
    exact.scatter_add_(1, ids.clamp(0, vocab - 1).long(), values.double() * valid)
    ops.apply_bias(logits, ids.to(logits.device), values.to(logits.device))
    rtol = 1e-6 if logits.dtype == F32 else 1e-3
    torch.testing.assert_close(logits.double().cpu(), exact, rtol=rtol, atol=rtol)
    before = logits.clone()
    ops.apply_mask(logits, words.to(logits.device))
    expected = torch.where(allowed.to(logits.device), before, -INF)
    assert torch.equal(logits, expected)


# --- Refusals, registration, graphs ------------------------------------------------------------
def arguments_of(name, rows=2, vocab=9, device="cpu"):
    x = torch.randn(rows, vocab, device=device)
    slots = torch.zeros(rows, dtype=I32, device=device)
    counts = torch.zeros(3, vocab, dtype=I32, device=device)
    ones = torch.ones(rows, device=device)
    return {
        "apply_penalties": (x, counts, counts > 0, slots, ones * 1.5, ones, ones),
        "count_tokens": (counts, slots, torch.zeros(rows, dtype=I64, device=device)),
        "apply_bias": (x, torch.zeros(rows, 1, dtype=I32, device=device), ones[:, None].clone()),
        "apply_mask": (x, torch.zeros(rows, -(-vocab // 32), dtype=I32, device=device)),
        "sample": (x, *params(rows, device)),
        "top_logprobs": (x, 4),
        "token_logprobs": (x, torch.zeros(rows, 2, dtype=I64, device=device)),
    }[name]


NAMES = (
    "apply_penalties",
    "count_tokens",
    "apply_bias",
    "apply_mask",
    "sample",
    "top_logprobs",
    "token_logprobs",
)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    torch.library.opcheck(getattr(torch.ops.volta, name).default, arguments_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_no_rows(name):
    getattr(ops, name)(*arguments_of(name, rows=0))


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_checked(name):
    arguments = arguments_of(name)
    for at, good in enumerate(arguments):
        if not isinstance(good, torch.Tensor):
            continue
        longer = torch.cat((good, good))
        for bad in (good.to(torch.float64), good.to("meta"), longer[::2]) + (
            (longer,) if at or name == "sample" else ()
        ):
            with pytest.raises(ValueError, match=r"float64|meta|strides|shape|needs"):
                getattr(ops, name)(*arguments[:at], bad, *arguments[at + 1 :])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.top_logprobs(torch.zeros(1, 30), 21), "n is 21, needs 1 to 20"),
        (lambda: ops.top_logprobs(torch.zeros(1, 3), 4), "n is 4, needs 1 to 3"),
        (lambda: ops.top_logprobs(torch.zeros(1, 3), 0), "n is 0"),
        (lambda: ops.top_logprobs(torch.zeros(3), 1), "logits has shape [3], needs [rows, vocab]"),
        (lambda: ops.top_logprobs(torch.zeros(2, 0), 1), "logits has shape [2, 0]"),
        (lambda: ops.top_logprobs(torch.zeros(1, 2**20 + 1), 1), "[1, 1048577]"),
        (lambda: ops.top_logprobs(torch.zeros(1, 9).half(), 1), "logits is torch.float16 [1, 9]"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize(("rows", "vocab"), [(8, 32000), (3, 5003)])
def test_a_captured_graph_serves_any_request(cuda, dtype, rows, vocab):
    torch.manual_seed(rows)
    raw = torch.empty(rows, vocab, device=cuda, dtype=dtype)
    counts = torch.zeros(rows, vocab, dtype=I32, device=cuda)
    prompt = torch.rand(rows, vocab, device=cuda) < 0.1
    slots = torch.arange(rows, dtype=I32, device=cuda)
    penalties = [torch.ones(rows, device=cuda) for _ in range(3)]
    bias = torch.full((rows, 4), -1, dtype=I32, device=cuda), torch.zeros(rows, 4, device=cuda)
    allowed = torch.full((rows, -(-vocab // 32)), -1, dtype=I32, device=cuda)
    arguments = mixed(rows, cuda, 0)

    def step(counts):
        logits = raw.clone()
        ops.apply_penalties(logits, counts, prompt, slots, *penalties)
        ops.apply_bias(logits, *bias)
        ops.apply_mask(logits, allowed)
        drawn = ops.sample(logits, *arguments)
        ops.count_tokens(counts, slots, drawn[0])
        return (*drawn, *ops.top_logprobs(logits, 5), ops.token_logprobs(logits, drawn[0][:, None]))

    raw.normal_()
    step(counts.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(counts)
    for i in range(1000):
        raw.normal_(std=3)
        for to, new in zip(arguments, mixed(rows, cuda, i), strict=True):
            to.copy_(new)
        arguments[-1].fill_(i)
        for p in penalties:
            p.uniform_(0.5, 1.5)
        bias[0].copy_(torch.randint(vocab // 4, (rows, 4)) * 4 + torch.arange(4) - 1)
        bias[1].normal_()
        allowed.random_(-(2**31), 2**31 - 1)
        if i % 97:
            graph.replay()
            continue
        eager_counts = counts.clone()
        expected = step(eager_counts)
        graph.replay()
        for got, want in zip((*captured, counts), (*expected, eager_counts), strict=True):
            assert torch.equal(got, want)
    assert counts.sum() == 1000 * rows
