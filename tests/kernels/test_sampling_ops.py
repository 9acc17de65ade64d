"""The ops around the draw: log-probabilities, changes of logits; what all refuse; graphs."""

import re

import pytest
import torch
from sampling_reference import F16, F32, I32, I64, INF, NAN, PLACES, mixed, params, place_of

from volta_runtime import ops


@pytest.fixture(params=PLACES)
def place(request):
    return place_of(request)


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
