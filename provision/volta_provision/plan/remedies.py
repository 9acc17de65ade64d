"""What would fit in place of what does not: less to serve, more or larger GPUs, fewer bits."""

from collections.abc import Iterator
from dataclasses import replace

from volta_doctor.catalog import compat
from volta_doctor.facts.model import Missing
from volta_doctor.preflight.subject import Cards
from volta_doctor.sizing.memory import MemoryPlan, plan_of
from volta_doctor.sizing.split import Split
from volta_doctor.words import several
from volta_provision.plan.candidates import Candidate, Task, cache_of

_SHORTEST = 256  # tokens; below that nothing can be asked
_COUNTS = (1, 2, 4, 8, 16)
_FOUR_BITS = 4.5  # a weight with its scales: a byte for 16 weights of 4 bits each (NVFP4)
_GIB = 2**30


def would_fit(one: Candidate, task: Task) -> list[str]:
    """Return what the engine could serve, each as a sentence with its numbers."""
    return [*_less(one, task), *_more(one, task), *_fewer_bits(one, task)]


def _less(one: Candidate, task: Task) -> Iterator[str]:
    memory, wanted = one.memory, one.wanted
    if memory is None:
        return
    if memory.max_context >= _SHORTEST:
        at_once = several(wanted.concurrency, "request")
        yield f"--context {memory.max_context} with {at_once} at once"
    if memory.max_concurrency:
        yield f"--concurrency {memory.max_concurrency} of {wanted.context} tokens"
    asked = cache_of(one.engine, wanted.kv_cache_dtype)
    for row in one.engine.kv_cache:
        if row.runs and asked and row.bytes < asked.bytes:
            smaller = _plan(one, task, one.seats.cards, one.tensor_parallel, row.name)
            if smaller and smaller.fits:
                sizes = f"{row.bytes:g} bytes a value, not {asked.bytes:g}"
                yield f"--kv-cache-dtype {row.name}: {sizes}"


def _more(one: Candidate, task: Task) -> Iterator[str]:
    """The fewest GPUs that suffice: of the same model, and of the one with twice the memory."""
    model = one.seats.cards.model
    larger = model.replace("-16gb", "-32gb")
    for name in dict.fromkeys((model, larger)):
        card = compat().cards.get(name)
        for count in _COUNTS if card else ():
            if one.engine.shards == "none" and count > 1:
                break
            if name == model and count <= task.most:
                continue
            cards = Cards(name, (card.memory,) * count, (0,) * count, "--gpu")
            if (plan := _plan(one, task, cards, count)) and plan.fits:
                yield f"--gpu {name} --count {count}"
                break


def _plan(
    one: Candidate, task: Task, cards: Cards, count: int, kv_cache: str = ""
) -> MemoryPlan | None:
    engine, wanted = one.engine, one.wanted
    own = cache_of(engine, wanted.kv_cache_dtype)
    experts = count if one.expert_parallel > 1 else 1
    try:
        return plan_of(
            task.weights,
            engine,
            cards,
            Split(count, experts, engine.shards == "layer"),
            context=wanted.context,
            concurrency=wanted.concurrency,
            utilization=wanted.gpu_memory_utilization,
            kv_cache=kv_cache or (own.name if own else ""),
            eager=wanted.enforce_eager,
        )
    except Missing:
        return None


def _fewer_bits(one: Candidate, task: Task) -> Iterator[str]:
    """A checkpoint in 4 bits, where this one has clearly more of them."""
    weights, memory = task.weights, one.memory
    if memory is None or not weights.parameters:
        return
    bits = weights.bytes * 8 / weights.parameters
    if bits < 2 * _FOUR_BITS - 1:
        return
    share = _FOUR_BITS / bits
    smaller = [replace(part, weights=int(part.weights * share)) for part in memory.gpus]
    if all(part.total <= limit for part, limit in zip(smaller, memory.budget, strict=True)):
        now, then = memory.gpus[0].weights / _GIB, smaller[0].weights / _GIB
        yield (
            f"a checkpoint in 4 bits ({_FOUR_BITS:g} with scales): {then:.1f} GiB of weights a GPU,"
            f" not {now:.1f} ({bits:.1f} bits)"
        )
