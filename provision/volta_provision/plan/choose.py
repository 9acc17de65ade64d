"""Which candidate is taken, and which of each other engine is told beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from volta_provision.plan.candidates import Candidate, Task, Wanted, candidates
from volta_provision.stack import EMBEDDED

_AS_FAST = 0.9  # of the fastest one's pace: no range is sharp enough to tell such a pair apart
_STEP = 256  # tokens; a context that the planner chooses is so many times this


@dataclass(frozen=True)
class Chosen:
    """The outcome: the first candidate runs, or else none does and it comes nearest.

    others: the best of each other engine. lowered: whether context or concurrency were.
    """

    first: Candidate
    others: Sequence[Candidate]
    lowered: bool = False


def choose(task: Task, wanted: Wanted, may_lower: frozenset[str]) -> Chosen:
    """Hold all candidates against each other.

    Where none fits, fewer requests at once and then a shorter context are tried, as far as
    `may_lower` names `concurrency` and `context`: the user did not ask for these.
    """
    found = candidates(task, wanted)
    lowered = False
    if any(map(_lacks, found)) and not any(one.runs for one in found):
        less = _less(task, wanted, found, may_lower)
        again = candidates(task, less) if less else []
        if lowered := any(one.runs for one in again):
            found = again
    of_engine: dict[str, list[Candidate]] = {}
    for one in found:
        of_engine.setdefault(one.engine.name, []).append(one)
    first = best(found)
    others = [best(ones) for name, ones in of_engine.items() if name != first.engine.name]
    return Chosen(first, sorted(others, key=_distance), lowered)


def _less(
    task: Task, wanted: Wanted, found: Sequence[Candidate], may_lower: frozenset[str]
) -> Wanted | None:
    """Return what to ask for in place of what fits nowhere; None where nothing helps."""
    if "concurrency" in may_lower:
        plans = [one.memory for one in found if one.memory]
        if most := max((plan.max_concurrency for plan in plans), default=0):
            return replace(wanted, concurrency=most)
        wanted = replace(wanted, concurrency=1)
        found = candidates(task, wanted)
    plans = [one.memory for one in found if one.memory]
    longest = max((plan.max_context for plan in plans), default=0) // _STEP * _STEP
    return replace(wanted, context=longest) if longest and "context" in may_lower else None


def best(found: Sequence[Candidate]) -> Candidate:
    """Return the fastest that runs; of those about as fast that with fewer GPUs, then our own.

    Where none runs, the one that comes nearest.
    """
    running = [one for one in found if one.runs]
    if not running:
        return min(found, key=_distance)
    return min(running, key=lambda one: preference(one, running))


def preference(one: Candidate, running: Sequence[Candidate]) -> tuple[bool, int, int, bool, float]:
    """Return what the choice goes by, the least first."""
    fastest = max(other.pace for other in running)
    slower = one.pace < _AS_FAST * fastest
    own = one.engine.name == EMBEDDED
    return slower, one.tensor_parallel, one.expert_parallel, not own, -one.pace


def lack(one: Candidate) -> int:
    """Return the bytes that the fullest GPU lacks; below 0 what it has left."""
    memory = one.memory
    if memory is None:
        return 0
    return max(part.total - limit for part, limit in zip(memory.gpus, memory.budget, strict=True))


def _lacks(one: Candidate) -> bool:
    return one.memory is not None and not one.memory.fits


def _distance(one: Candidate) -> tuple[int, float]:
    """How far it is from running: running, short of memory, not told, refused."""
    if one.runs:
        return 0, -one.pace
    if _lacks(one):
        return 1, lack(one)
    return (2, one.tensor_parallel) if one.untold else (3, one.tensor_parallel)
