"""Choosing the next token from one row of logits."""

import torch
from torch import Tensor

from volta_runtime.engine.params import SamplingParams

# Below this the likeliest token is certain, and in float32 the division would overflow.
_LEAST_TEMPERATURE = 1e-5

# A nucleus nearly always lies within this many tokens; selecting them is nine times faster than
# sorting a vocabulary of 49152 (0.5 ms against 4.4 ms on one CPU core).
_SHORTLIST = 1024


class Sampler:
    """The random and penalty state of one sequence."""

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        prompt: list[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._params = params
        self._generator = torch.Generator(device).manual_seed(seed)
        if params.penalises:
            self._counts = torch.zeros(vocab_size, device=device)
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[prompt] = True

    def __call__(self, logits: Tensor) -> int:
        """The next token's id for float32 logits [vocab_size]."""
        if self._params.penalises:
            logits = self._penalised(logits)
        token = int(
            logits.argmax()
            if self._params.temperature < _LEAST_TEMPERATURE
            else draw(logits, self._params, self._generator)
        )
        if self._params.penalises:
            self._counts[token] += 1
            self._seen[token] = True
        return token

    def _penalised(self, logits: Tensor) -> Tensor:
        p = self._params
        repeated = torch.where(
            logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty
        )
        return (
            torch.where(self._seen, repeated, logits)
            - p.frequency_penalty * self._counts
            - p.presence_penalty * (self._counts > 0)
        )


def draw(logits: Tensor, params: SamplingParams, generator: torch.Generator) -> Tensor:
    """Sample a token id: temperature, then min_p, top_k and top_p, as vLLM orders them."""
    # The maximum is taken off first, so that a small temperature cannot overflow.
    probs = ((logits - logits.max()) / params.temperature).softmax(-1)
    if params.min_p > 0:
        probs = probs.where(probs >= params.min_p * probs.max(), 0)
    ids = None
    if params.top_k > 0:
        probs, ids = probs.topk(min(params.top_k, probs.numel()))
    if params.top_p < 1:
        probs, order = _nucleus(probs, params.top_p)
        ids = order if ids is None else ids[order]
    # torch.multinomial takes 2.5 ms for 49152 tokens; a search in the cumulative sum 0.1 ms.
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    point = torch.rand(1, generator=generator, dtype=torch.float64, device=probs.device).mul_(
        cumulative[-1]
    )
    index = torch.searchsorted(cumulative, point, right=True).clamp_(max=probs.numel() - 1)
    return index if ids is None else ids[index]


def _nucleus(probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens whose mass reaches top_p, and their indices, likeliest first."""
    target = top_p * probs.sum()
    size = min(_SHORTLIST, probs.numel())
    top, order = probs.topk(size)
    if size < probs.numel() and top.sum() < target:
        top, order = probs.sort(descending=True)
    inside = top.cumsum(-1) - top < target
    inside[0] = True  # top_p may be tiny
    return top[inside], order[inside]
