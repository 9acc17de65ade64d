"""What would fit in place of what does not: less to serve, more or larger GPUs, fewer bits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from volta_doctor.catalog import compat
from volta_doctor.catalog.engines import engines
from volta_doctor.facts.model import Missing
from volta_doctor.findings import Status
from volta_doctor.preflight.cards import of_flag
from volta_doctor.preflight.subject import Cards
from volta_doctor.sizing.memory import MemoryPlan, plan_of
from volta_doctor.sizing.parallel import sizes_that_work
from volta_doctor.sizing.split import Split
from volta_doctor.words import few, several
from volta_provision.plan.candidates import RUNS_AT_ALL, Candidate, Task, cache_of

_SHORTEST = 256  # tokens; below that nothing can be asked
_COUNTS = (1, 2, 4, 8, 16)
_FOUR_BITS = 4.5  # a weight with its scales: a byte for 16 weights of 4 bits each (NVFP4)
_GIB = 2**30


def would_fit(one: Candidate, others: Sequence[Candidate], task: Task) -> list[str]:
    """Return what the engine could serve, each as a sentence with its numbers.

    More GPUs may be those of another engine that merely lacks memory.
    """
    if one.ends:
        fails = [finding for finding in one.findings if finding.status is Status.FAIL]
        if all(finding.id == RUNS_AT_ALL for finding in fails):
            return [f"the model in another format; on sm_70 run {_formats()}"] if fails else []
        return list(dict.fromkeys(finding.remedy.fix for finding in fails))
    short = [one, *(other for other in others if other.memory and not other.fits)]
    found = [*_less(one, task), *_more(short, task), *_fewer_bits(one, task)]
    return found or [f"not even 4 bits a weight on {_COUNTS[-1]} of the largest GPUs"]


def _formats() -> str:
    """Name the formats that some engine runs."""
    rows = [row for engine in engines().values() for row in engine.formats if row.runs]
    return few(list(dict.fromkeys(name for row in rows for name in row.formats)), 8)


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


def _more(short: Sequence[Candidate], task: Task) -> Iterator[str]:
    """The fewest GPUs that suffice: of the same model, and of the one with twice the memory."""
    model = short[0].seats.cards.model
    even = sizes_that_work(task.checkpoint)
    for name in dict.fromkeys((model, _larger(model))):
        counts = [count for count in _COUNTS if name != model or count > task.most]
        found = (
            (count, one)
            for count in counts
            for one in short
            if _spreads(one, count, even)
            and (plan := _plan(one, task, of_flag(name, count), count))
            and plan.fits
        )
        for count, one in found:
            engine = "" if one is short[0] else f" --engine {one.engine.name}"
            yield f"--gpu {name} --count {count}{engine}"
            break


def _spreads(one: Candidate, count: int, even: Sequence[int]) -> bool:
    """Whether an engine can use so many GPUs, where a split into `even` numbers divides."""
    shards = one.engine.shards
    return count == 1 or shards == "layer" or (shards == "tensor" and count in even)


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
            utilization=one.flags.gpu_memory_utilization,
            kv_cache=kv_cache or (own.name if own else ""),
            eager=wanted.enforce_eager,
        )
    except Missing:
        return None


def _fewer_bits(one: Candidate, task: Task) -> Iterator[str]:
    """A checkpoint in 4 bits, where this one has clearly more: on the fewest GPUs that suffice."""
    weights, model = task.weights, one.seats.cards.model
    bits = weights.bytes * 8 / weights.parameters if weights.parameters else 0
    if bits < 2 * _FOUR_BITS - 1:
        return
    even = sizes_that_work(task.checkpoint)
    places = [(one.seats.cards, one.tensor_parallel)]
    places += [
        (of_flag(name, count), count)
        for name in dict.fromkeys((model, _larger(model)))
        for count in _COUNTS
        if count > one.tensor_parallel and _spreads(one, count, even)
    ]
    for cards, count in places:
        if not (plan := _plan(one, task, cards, count)):
            return
        smaller = [replace(p, weights=int(p.weights * _FOUR_BITS / bits)) for p in plan.gpus]
        if all(part.total <= limit for part, limit in zip(smaller, plan.budget, strict=True)):
            now, then = (max(p.weights for p in parts) / _GIB for parts in (plan.gpus, smaller))
            yield (
                f"a checkpoint in 4 bits ({_FOUR_BITS:g} with scales) on {count} x {cards.model}:"
                f" {then:.1f} GiB of weights on the fullest GPU, not {now:.1f} ({bits:.1f} bits)"
            )
            return


def _larger(model: str) -> str:
    """Return the model with twice the memory, the same where there is none."""
    name = model.replace("-16gb", "-32gb")
    return name if name in compat().cards else model
