"""Does the tensor-parallel size divide what it must? Heads, sizes, groups, experts, tiles."""

from collections.abc import Iterable, Iterator

from volta_doctor.catalog import Row
from volta_doctor.facts.model import Missing
from volta_doctor.findings import HOST, Finding
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.subject import Subject
from volta_doctor.sizing.parallel import (
    Uneven,
    expert_faults,
    group_faults,
    heads_of,
    off_tile,
    parts_of,
    size_faults,
    sizes_that_work,
    uneven_heads,
)
from volta_doctor.sizing.split import Split


def split_of(subject: Subject) -> Split:
    """Return how the flags spread the model; without any it is not spread."""
    flags = subject.flags
    ranks = flags.tensor_parallel_size or 1
    by_layer = subject.engine is not None and subject.engine.shards == "layer"
    experts = ranks if flags.enable_expert_parallel else 1
    return Split(ranks, experts, by_layer, flags.pipeline_parallel_size or 1)


def _judge(subject: Subject, row: Row, found: Iterable[Uneven], fine: str) -> Iterator[Finding]:
    """Fail for each thing that is uneven; else say what divides, and which sizes would."""
    split = split_of(subject)
    if split.by_layer and subject.engine:
        yield row.ok(f"{subject.engine.title} gives each GPU whole layers: nothing is split.")
        return
    faults = list(found)
    for uneven in faults:
        yield _fail(subject, row, uneven)
    if faults:
        return
    if subject.flags.tensor_parallel_size:
        yield row.ok(f"{fine} for tensor-parallel size {split.tensor}.")
    else:
        sizes = ", ".join(map(str, sizes_that_work(subject.checkpoint)))
        yield row.ok(f"Nothing is split at size 1. Of 1 to 16 these sizes would work: {sizes}.")


def _fail(subject: Subject, row: Row, uneven: Uneven) -> Finding:
    """Tell of a module, or of the whole model where it is a number of its config."""
    module = uneven.subject in subject.checkpoint.modules
    return row.fail(uneven.text, subject=uneven.subject if module else HOST)


@model_check("tp-split")
def sizes(subject: Subject, row: Row) -> Iterator[Finding]:
    """An engine asserts it when it builds the layer, after minutes."""
    found = size_faults(parts_of(subject.checkpoint), split_of(subject).tensor)
    yield from _judge(subject, row, found, "Every split side of every layer divides")


@model_check("tp-divides-heads")
def heads(subject: Subject, row: Row) -> Iterator[Finding]:
    """Attention is split by whole heads; of KV heads a rank may also hold a copy."""
    a, split = subject.checkpoint.architecture, split_of(subject)
    counts = heads_of(a)
    if not counts:
        untold = "The model does not tell how many attention heads it has"
        if split.tensor > 1 and not split.by_layer:
            raise Missing(f"{untold}.")
        yield row.ok(f"{untold}, and nothing is split at size 1.")
        return
    found = list(uneven_heads(counts, split.tensor))
    if not found and not split.by_layer and split.tensor > 1:
        if a.kv_lora_rank:
            text = "With MLA every rank holds the whole latent KV cache: it does not shrink."
            yield row.info(text)
            return
        if a.kv_heads and a.kv_heads < split.tensor:
            text = (
                f"{a.kv_heads} KV heads on {split.tensor} ranks: each holds a copy of one, so the"
                f" KV cache of a GPU is no smaller than at {a.kv_heads}."
            )
            yield row.info(text)
            return
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    yield from _judge(subject, row, found, f"All heads divide ({told})")


@model_check("tp-divides-groups")
def groups(subject: Subject, row: Row) -> Iterator[Finding]:
    """A rank that holds half a group has no scale for it."""
    parts, split = parts_of(subject.checkpoint), split_of(subject)
    if not any(part.group > 1 or part.rows > 1 for part in parts):
        yield row.skip("No layer is quantised in groups.")
        return
    found = group_faults(parts, split.tensor, split.within_expert)
    sizes = sorted({part.group for part in parts if part.group > 1})
    yield from _judge(subject, row, found, f"Groups of {', '.join(map(str, sizes))} stay whole")


@model_check("tp-divides-experts")
def experts(subject: Subject, row: Row) -> Iterator[Finding]:
    """With expert parallelism whole experts are dealt out, else each is split."""
    a, split = subject.checkpoint.architecture, split_of(subject)
    if not a.experts:
        yield row.skip("The model has no experts.")
        return
    parts = parts_of(subject.checkpoint)
    if not parts:
        raise Missing("No header could be read that tells of tensors.")
    found = list(expert_faults(parts, a, split))
    if split.expert > 1 and not split.by_layer and found:
        few = a.experts < split.expert
        for uneven in found:
            yield (row.fail if few else row.warn)(uneven.text, subject=uneven.subject)
        return
    yield from _judge(subject, row, found, f"{a.experts} experts divide")


@model_check("tp-tile")
def tiles(subject: Subject, row: Row) -> Iterator[Finding]:
    """Kernels read whole tiles: what they read beyond a narrow layer must be padding."""
    parts, split = parts_of(subject.checkpoint), split_of(subject)
    packed = sum(part.alike for part in parts if part.packed)
    if not packed:
        yield row.skip("No layer is quantised.")
        return
    found = [] if split.by_layer else list(off_tile(parts, subject.checkpoint.architecture, split))
    for uneven in found:
        yield row.info(uneven.text, subject=uneven.subject)
    if not found:
        yield row.ok(f"{packed} quantised weights, whole tiles on every rank.")
