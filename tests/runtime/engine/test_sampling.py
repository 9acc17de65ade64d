import math
from collections import Counter

import pytest
import torch

from volta_runtime.engine import SamplingParams
from volta_runtime.engine.sampling import Sampler

CPU = torch.device("cpu")
LOGITS = torch.tensor([0.5, 0.1, 0.25, 0.15]).log()


def sampler(prompt=(), vocab_size=4, seed=1, **params):
    params = SamplingParams(max_tokens=1, **params)
    return Sampler(params, seed, list(prompt), vocab_size, CPU)


def frequencies(logits, count=20000, **params):
    draw = sampler(vocab_size=len(logits), **params)
    counts = Counter(draw(logits) for _ in range(count))
    return {token: n / count for token, n in counts.items()}


# Four standard deviations of a frequency near one half over 20000 draws.
TOLERANCE = 4 * math.sqrt(0.25 / 20000)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0: 0.5, 1: 0.1, 2: 0.25, 3: 0.15}),
        ({"temperature": 2.0}, {0: 0.368, 1: 0.165, 2: 0.260, 3: 0.202}),  # p^(1/2), normalised
        ({"top_k": 2}, {0: 2 / 3, 2: 1 / 3}),
        ({"top_p": 0.7}, {0: 2 / 3, 2: 1 / 3}),
        ({"top_p": 0.5}, {0: 1.0}),
        ({"top_p": 1e-9}, {0: 1.0}),
        ({"min_p": 0.4}, {0: 2 / 3, 2: 1 / 3}),
        # The nucleus is of what top_k leaves: 5/9, 2.5/9, 1.5/9.
        ({"top_k": 3, "top_p": 0.6}, {0: 2 / 3, 2: 1 / 3}),
    ],
)
def test_frequencies(params, expected):
    found = frequencies(LOGITS, **params)
    assert found.keys() == expected.keys()
    for token, share in expected.items():
        assert abs(found[token] - share) < TOLERANCE


def test_a_flat_nucleus_wider_than_the_shortlist():
    logits = torch.zeros(5000)
    logits[4000:] = -20
    found = frequencies(logits, count=3000, top_p=0.9)
    assert max(found) < 4000
    assert len(found) > 1800  # 3600 tokens are inside; 3000 draws hit about 2000 of them


def test_temperature_zero_and_tiny_temperatures_take_the_largest():
    for params in ({"temperature": 0.0}, {"temperature": 1e-300}, {"top_k": 1}):
        assert {sampler(**params)(LOGITS) for _ in range(20)} == {0}


def test_the_seed_decides():
    logits = torch.zeros(1000)

    def draws(seed):
        draw = sampler(vocab_size=1000, seed=seed)
        return [draw(logits) for _ in range(8)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)


@pytest.mark.parametrize(
    ("params", "prompt", "expected"),
    [
        # Logits 2, 1.5, -1: how many times in a row the first stays the largest.
        ({"frequency_penalty": 0.2}, [], [0, 0, 0, 1]),
        ({"presence_penalty": 0.6}, [], [0, 1, 0, 0]),
        ({"repetition_penalty": 1.5}, [], [0, 1, 0, 0]),
        ({"repetition_penalty": 1.5}, [0], [1, 0, 0, 0]),  # the prompt counts
        ({"frequency_penalty": 0.2}, [0, 0, 0, 0], [0, 0, 0, 1]),  # the prompt does not
    ],
)
def test_penalties(params, prompt, expected):
    draw = sampler(prompt, vocab_size=3, temperature=0.0, **params)
    logits = torch.tensor([2.0, 1.5, -1.0])
    assert [draw(logits) for _ in range(4)] == expected


def test_repetition_lowers_negative_logits_too():
    draw = sampler([0], vocab_size=2, temperature=0.0, repetition_penalty=2.0)
    assert draw(torch.tensor([-1.0, -1.5])) == 1
