"""A decoder's small operations at the sizes of models, and what becomes of logits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from volta_runtime import ops
from volta_runtime.ops.native import ACTIVATION

from .measure import Call, Row, Timer
from .shapes import Model, label

TOKENS = (1, 64, 2048)
LOGITS_ROWS = (1, 64)
VOCAB = 152064
_EPS = 1e-6
_TOP_LOGPROBS = 20
_TILE = 32  # rows of a grouped product


@dataclass(frozen=True)
class _Case:
    """A kernel, and what makes a call of it, and torch's for the same, on memory of its own."""

    kernel: str
    name: str
    shape: str
    bytes: int
    make: Callable[[], Call]
    make_torch: Callable[[], Call] | None = None

    def row(self, timer: Timer, model: str, m: int) -> Row:
        """Measured."""
        copies = timer.copies(self.bytes)
        took = timer.time([self.make() for _ in range(copies)])
        torch_us = None
        if self.make_torch:
            torch_us = timer.time([self.make_torch() for _ in range(copies)]).best
        dtype = str(ACTIVATION[timer.device.type]).removeprefix("torch.")
        return Row(
            timer.device.type, self.kernel, model, self.name, self.shape, m, dtype, self.bytes, 0,
            took.best, took.median, torch_us,
        )  # fmt: skip


def decoder(timer: Timer, model: Model, ranks: int, ms: Sequence[int] = TOKENS) -> Iterator[Row]:
    """Norms, rotation, activation and embedding of one rank."""
    words = _random(timer)(model.vocab, model.hidden)
    for m in ms:
        for case in _decoder_cases(timer, model, ranks, m, words):
            yield case.row(timer, label(model, ranks), m)


def sampling(timer: Timer, ms: Sequence[int] = LOGITS_ROWS, vocab: int = VOCAB) -> Iterator[Row]:
    """From logits to tokens and log-probabilities."""
    for m in ms:
        for case in _sampling_cases(timer, m, vocab):
            yield case.row(timer, "", m)


def routing(timer: Timer, model: Model, ms: Sequence[int] = TOKENS) -> Iterator[Row]:
    """Choosing experts, sorting by them, and summing what they gave."""
    for m in ms:
        for case in _routing_cases(timer, model, m):
            yield case.row(timer, model.name, m)


def _random(timer: Timer) -> Callable[..., Tensor]:
    return partial(torch.randn, device=timer.device, dtype=ACTIVATION[timer.device.type])


def _decoder_cases(
    timer: Timer, model: Model, ranks: int, m: int, words: Tensor
) -> Iterator[_Case]:
    random, size = _random(timer), words.element_size()
    hidden, weight = model.hidden, random(model.hidden)

    def norm() -> Call:
        return partial(ops.rms_norm, random(m, hidden), weight, _EPS, random(m, hidden))

    def torch_norm() -> Call:
        x, residual = random(m, hidden), random(m, hidden)
        return lambda: F.rms_norm(residual.add_(x), (hidden,), weight, _EPS)

    yield _Case("rms_norm", "with residual", str(hidden), 4 * m * hidden * size, norm, torch_norm)

    def ids() -> Tensor:
        return torch.randint(0, model.vocab, (m,), device=timer.device)

    yield _Case(
        "embedding", "", f"{model.vocab}x{hidden}", 2 * m * hidden * size,
        lambda: partial(ops.embedding, ids(), words),
        lambda: partial(F.embedding, ids(), words),
    )  # fmt: skip

    if intermediate := model.intermediate // ranks:

        def torch_gate() -> Call:
            gate, up = random(m, 2 * intermediate).chunk(2, -1)
            return lambda: F.silu(gate) * up

        yield _Case(
            "gated_activation", "silu", str(intermediate), 3 * m * intermediate * size,
            lambda: partial(ops.gated_activation, random(m, 2 * intermediate), "silu"),
            torch_gate,
        )  # fmt: skip

    heads, kv_heads, dim = model.heads // ranks, model.kv_heads // ranks, model.head_dim
    if heads:
        head, positions = random(dim), torch.arange(m, device=timer.device)
        table = ops.rope_cache(dim, max(m, 2), 1e4, device=timer.device)

        def rope() -> Call:
            qkv = random(m, (heads + 2 * kv_heads) * dim)
            return partial(
                ops.qk_norm_rope, qkv, head, head, table, positions, heads, kv_heads, dim, _EPS
            )

        turned = 2 * m * (heads + kv_heads) * dim * size
        yield _Case("qk_norm_rope", "", f"{heads}+{kv_heads} heads of {dim}", turned, rope)


def _sampling_cases(timer: Timer, m: int, vocab: int) -> Iterator[_Case]:
    random, top = _random(timer), min(_TOP_LOGPROBS, vocab)

    def full(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((m,), value, dtype=dtype, device=timer.device)

    def case(
        kernel: str,
        name: str,
        call: Callable[[Tensor], object],
        torch_call: Callable[[Tensor], object] | None = None,
    ) -> _Case:
        def make(call: Callable[[Tensor], object]) -> Call:
            return partial(call, 3 * random(m, vocab))

        read = m * vocab * ACTIVATION[timer.device.type].itemsize
        make_torch = torch_call and partial(make, torch_call)
        return _Case(kernel, name, str(vocab), read, partial(make, call), make_torch)

    def sample(temperature: float, top_k: int, top_p: float) -> Callable[[Tensor], object]:
        how = (
            full(temperature, torch.float32), full(top_k, torch.int32), full(top_p, torch.float32),
            full(0, torch.float32), torch.arange(m, device=timer.device), full(0, torch.int64),
        )  # fmt: skip
        return lambda logits: ops.sample(logits, *how)

    yield case("sample", "greedy", sample(0, 0, 1), lambda logits: logits.argmax(-1))
    yield case("sample", "temperature", sample(1, 0, 1))
    yield case("sample", "top-k 50, top-p 0.9", sample(0.8, 50, 0.9))
    yield case(
        "top_logprobs", str(top), lambda logits: ops.top_logprobs(logits, top),
        lambda logits: logits.float().log_softmax(-1).topk(top),
    )  # fmt: skip


def _routing_cases(timer: Timer, model: Model, m: int) -> Iterator[_Case]:
    random, size = _random(timer), ACTIVATION[timer.device.type].itemsize
    count, top_k, hidden = model.experts, model.top_k, model.hidden
    shape, slots = f"{top_k} of {count}", m * top_k
    tiles = slots // _TILE + min(slots, count)

    def route() -> Call:
        return partial(ops.moe_route, random(m, count), top_k, renormalize=True)

    def permute() -> Call:
        _, experts = ops.moe_route(random(m, count), top_k, renormalize=True)
        return partial(ops.moe_permute, experts, count, _TILE)

    def combine() -> Call:
        routes = ops.moe_route(random(m, count), top_k, renormalize=True)
        y = random(slots, hidden)
        return partial(ops.moe_combine, y, *routes, first_expert=0, local_experts=count)

    yield _Case("moe_route", "", shape, m * count * size + 8 * slots, route)
    yield _Case("moe_permute", "", shape, 4 * (2 * slots + count + 1 + 2 * tiles), permute)
    yield _Case(
        "moe_combine", "", f"{shape}, {hidden}", (slots + m) * hidden * size + 8 * slots, combine
    )
