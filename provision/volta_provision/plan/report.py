"""What `volta-stack plan` says, as JSON has it; schema.json beside this file describes it."""

from dataclasses import asdict
from typing import Literal

import msgspec

from volta_doctor.preflight.model import Model
from volta_doctor.sizing.plan import MemoryPlan
from volta_doctor.sizing.speed import Range, Speed

SCHEMA = 1

Verdict = Literal["runs", "runs, but", "does not run", "could not tell"]
Outcome = Literal["runs", "lacks memory", "ends", "not told"]
EXIT_CODES: dict[Verdict, int] = {
    "runs": 0,
    "runs, but": 1,
    "does not run": 2,
    "could not tell": 3,
}


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one GPU by part; `free` is what nothing of these takes, below 0 where it lacks.

    `total` is the GPU's, `budget` what the engine may take of it.
    """

    total: int
    budget: int
    weights: int
    embeddings: int
    kv_cache: int
    state: int
    activations: int
    graphs: int
    context: int
    neighbours: int
    free: int


class Pace(msgspec.Struct, frozen=True):
    """Tokens a second, between these two."""

    low: float
    high: float

    @property
    def told(self) -> str:
        """The range in words, each end with two significant figures: more would be pride."""
        low, high = _rounded(self.low), _rounded(self.high)
        return low if low == high else f"{low}-{high}"


class Paces(msgspec.Struct, frozen=True, kw_only=True):
    """How fast it will be.

    `decode` is of one request alone, `decode_each` and `decode_all` at the asked concurrency.
    `bound` names what limits decoding, `limit` is the roofline itself in tokens a second.
    """

    decode: Pace
    decode_each: Pace
    decode_all: Pace
    prefill: Pace
    bound: str
    limit: float
    explained: list[str]
    sources: list[str]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and how to start it; where nothing runs, what came nearest.

    `gpus` are the indices that it gets by the host's name, where these are not its first ones.
    `memory` is by GPU, that with the least free first where a host's neighbours differ.
    `max_context` is the longest context at the concurrency, `max_concurrency` the most requests of
    the context. `because` says why this one, `no_speed` why there is no speed, if so, and `note`
    what is to be known of the engine.
    """

    engine: str
    title: str
    version: str
    tensor_parallel_size: int
    expert_parallel_size: int
    gpus: dict[str, list[int]]
    env: dict[str, str]
    command: list[str]
    memory: list[Memory]
    max_context: int
    max_concurrency: int
    speed: Paces | None
    no_speed: str
    because: str
    note: str


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """Another engine: why it comes behind the choice, what it lacks, the sentence it ends with."""

    engine: str
    title: str
    version: str
    outcome: Outcome
    says: str


class Caution(msgspec.Struct, frozen=True, kw_only=True):
    """Something to know before it is served: a check of `volta-doctor model`, or the planner's.

    `level` is fail for what no engine gets past.
    """

    level: Literal["fail", "warn"]
    id: str
    message: str
    fix: str


class HostTold(msgspec.Struct, frozen=True, kw_only=True):
    """One of the hosts: its Volta cards by their models, and what of it is not used."""

    name: str
    told_by: str
    gpus: list[str]
    notes: list[str]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was planned for: tokens of a request, its answer included, and requests at once.

    `lowered`: these are less than usual, since the usual does not fit and nothing was asked for.
    """

    context: int
    concurrency: int
    lowered: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan: a verdict with its reason, the choice, the other engines, and what would fit."""

    schema: int
    tool: str
    verdict: Verdict
    exit_code: int
    reason: str
    model: Model
    hosts: list[HostTold]
    asked: Asked
    choice: Choice | None
    cautions: list[Caution]
    others: list[Other]
    would_fit: list[str]
    notes: list[str]


def memory(plan: MemoryPlan, totals: tuple[int, ...]) -> list[Memory]:
    """Return the bytes of each GPU."""
    return [
        Memory(
            total=total,
            budget=budget,
            **asdict(parts),
            free=total - parts.total,
        )
        for parts, budget, total in zip(plan.gpus, plan.budget, totals, strict=True)
    ]


def paces(speed: Speed) -> Paces:
    """Return the speeds."""
    return Paces(
        decode=_pace(speed.decode),
        decode_each=_pace(speed.decode_each),
        decode_all=_pace(speed.decode_all),
        prefill=_pace(speed.prefill),
        bound=speed.bound,
        limit=speed.limit,
        explained=list(speed.explained),
        sources=list(speed.sources),
    )


def _rounded(value: float) -> str:
    if value < 10:
        return f"{value:.1f}"
    return f"{round(value, 2 - len(str(int(value)))):.0f}"


def _pace(found: Range) -> Pace:
    return Pace(found.low, found.high)
