"""Does the model fit: into every GPU, and through the host's RAM on its way there?"""

from collections.abc import Iterator
from dataclasses import fields, replace

from volta_doctor.catalog import Row
from volta_doctor.catalog.engines import Engine, engines
from volta_doctor.facts.model import Missing
from volta_doctor.findings import HOST, Evidence, Finding
from volta_doctor.host_room import swap_and_disks, swap_space
from volta_doctor.preflight.checks.parallel import split_of
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.subject import Cards, Subject
from volta_doctor.sizing.memory import MemoryPlan, Parts, plan_of
from volta_doctor.sizing.parallel import SIZES, sizes_that_work
from volta_doctor.sizing.split import Split
from volta_doctor.sizing.weights import weights_of
from volta_doctor.words import gib

_HIGH = 0.95  # of the memory: less than 5 % is left for fragments and for what else comes
_USUAL = "1cat-vllm"  # the engine that most formats run in, where none was named


@model_check("mem-fit")
def mem_fit(subject: Subject, row: Row) -> Finding:
    """What does not fit shows only after minutes of loading."""
    flags, cards = subject.flags, subject.cards
    engine = subject.engine or engines()[_USUAL]
    context = flags.max_model_len or subject.checkpoint.architecture.max_position
    if cards is None:
        raise Missing("No GPU was named.")
    if not context:
        raise Missing("Neither flags nor model tell the length of a context.")
    weights = weights_of(subject.checkpoint)
    split = split_of(subject)
    if split.gpus > len(cards.total):
        text = f"{split.gpus} GPUs are asked for, and there are {len(cards.total)}."
        return row.fail(text, Evidence(cards.told_by, _shown(cards)))
    sequences = (flags.max_num_seqs or engine.memory.sequences or 1) if _reserves(engine) else 1

    def planned(split: Split, cards: Cards, eager: bool) -> MemoryPlan:
        return plan_of(
            weights,
            engine,
            cards,
            split,
            context=context,
            concurrency=sequences,
            utilization=flags.gpu_memory_utilization,
            kv_cache=flags.kv_cache_dtype or "auto",
            eager=eager,
        )

    plan = planned(split, cards, flags.enforce_eager)
    told = [
        Evidence(cards.told_by, _shown(cards)),
        Evidence(str(subject.checkpoint.path), f"{gib(weights.bytes)} of weights in GPU memory"),
    ]
    title = engine.title if subject.engine else f"{engine.title} (no --engine was named)"
    text = f"{title}, {_each(sequences, context)}: {_spelled(plan)}."
    share = flags.gpu_memory_utilization or 0
    if plan.fits:
        if share > _HIGH:
            return row.warn(f"It fits, but {share:g} leaves under 5 % of a GPU. {text}", *told)
        return row.ok(f"It fits. {text} {_room(plan, sequences, context)}", *told)
    if not flags.enforce_eager and planned(split, cards, True).fits:
        return row.warn(f"CUDA graphs may not fit; --enforce-eager would. {text}", *told)
    wider = _wider(subject, split)
    enough = next((w.gpus for w in wider if planned(w, _more(cards, w.gpus), True).fits), None)
    return row.fail(f"It does not fit. {text} {_would(plan, enough)}", *told)


def _reserves(engine: Engine) -> bool:
    """Whether full contexts are reserved from the start; else one must fit, others may wait."""
    return engine.memory.sequences is not None


def _each(sequences: int, context: int) -> str:
    return f"{sequences} x {context} tokens" if sequences > 1 else f"{context} tokens"


def _spelled(plan: MemoryPlan) -> str:
    """Say what the fullest GPU holds, part by part."""
    gpu = max(range(len(plan.gpus)), key=lambda n: plan.gpus[n].total - plan.budget[n])
    held: Parts = plan.gpus[gpu]
    sizes = [(field.name.replace("_", " "), getattr(held, field.name)) for field in fields(held)]
    named = " + ".join(f"{name} {gib(size)}" for name, size in sizes if size)
    which = f"GPU {gpu} of {len(plan.gpus)}: " if len(plan.gpus) > 1 else ""
    return f"{which}{named} = {gib(held.total)}, of {gib(plan.budget[gpu])} that it may take"


def _room(plan: MemoryPlan, sequences: int, context: int) -> str:
    return (
        f"There is room for {plan.max_concurrency} x {context} tokens, or for {sequences} x"
        f" {plan.max_context}; a token takes {plan.kv_bytes_per_token / 1024:.1f} KiB of a GPU."
    )


def _would(plan: MemoryPlan, gpus: int | None) -> str:
    found = []
    if plan.max_context:
        found.append(f"--max-model-len {plan.max_context}")
    if plan.max_concurrency:
        found.append(f"--max-num-seqs {plan.max_concurrency}")
    if gpus:
        found.append(f"as it is on {gpus} such GPUs")
    if not found:
        return "No context and no number of GPUs up to 16 would fit."
    return f"What would fit: {', or '.join(found)}."


def _wider(subject: Subject, split: Split) -> list[Split]:
    """Return the ways to spread the model over more GPUs."""
    sizes = list(SIZES) if split.by_layer else sizes_that_work(subject.checkpoint)
    return [
        replace(split, tensor=size, expert=size if split.expert > 1 else 1)
        for size in sizes
        if size > split.tensor
    ]


def _more(cards: Cards, size: int) -> Cards:
    """Return so many idle cards, each like the smallest of these."""
    return replace(cards, total=(min(cards.total),) * size, used=(0,) * size)


def _shown(cards: Cards) -> str:
    sizes = ", ".join(gib(total) for total in cards.total)
    return f"{cards.model or 'GPUs'}: {sizes}"


@model_check("host-mem")
def host_mem(subject: Subject, row: Row) -> Iterator[Finding]:
    """A loader holds a whole file at a time."""
    host, contents = subject.host.host.need(), subject.checkpoint.contents
    held = {info.file.name for info in contents.tensors.values()}
    sizes = {file.name: file.size for file in contents.files if file.name in held}
    if not sizes:
        raise Missing("No file of weights is here, so how large they are is not known.")
    if host.available_bytes is None:
        raise Missing("The host does not tell how much RAM is available.")
    name = max(sizes, key=lambda name: sizes[name])
    text = f"{gib(host.available_bytes)} of RAM are available, and {name} has {gib(sizes[name])}."
    seen = Evidence("/proc/meminfo", f"MemAvailable {gib(host.available_bytes)}")
    enough = host.available_bytes >= sizes[name]
    yield row.ok(text, seen) if enough else row.fail(f"Only {text}", seen)
    yield swap_and_disks(row, host)


@model_check("swap-space-thrash")
def swap_space_thrash(subject: Subject, row: Row) -> Finding:
    """Each rank of vLLM pins its own swap space in RAM."""
    space, ranks = subject.flags.swap_space_gib, subject.flags.tensor_parallel_size or 1
    if not space:
        return row.ok("No --swap-space is set.")
    if not (ram := subject.host.host.need().ram_bytes):
        raise Missing("The host does not tell how much RAM it has.")
    return swap_space(row, space, ranks, ram, HOST)
