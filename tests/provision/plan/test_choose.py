"""What is taken where several run: the fastest, then fewer GPUs, then our own engine."""

from types import SimpleNamespace

import pytest

from volta_provision.plan.choose import best


def runs(engine, gpus, pace, runs=True):
    return SimpleNamespace(
        engine=SimpleNamespace(name=engine),
        tensor_parallel=gpus,
        expert_parallel=1,
        pace=pace,
        runs=runs,
    )


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([("vllm", 1, 100), ("vllm", 2, 150)], ("vllm", 2)),
        ([("vllm", 1, 100), ("vllm", 2, 105)], ("vllm", 1)),
        ([("vllm", 1, 100), ("embedded", 1, 92)], ("embedded", 1)),
        ([("vllm", 1, 100), ("embedded", 1, 80)], ("vllm", 1)),
        ([("vllm", 1, 95), ("embedded", 2, 100)], ("vllm", 1)),
        ([("vllm", 1, 0), ("vllm", 2, 0)], ("vllm", 1)),
    ],
)
def test_the_choice(others, chosen):
    found = best([runs(*one) for one in others])
    assert (found.engine.name, found.tensor_parallel) == chosen
