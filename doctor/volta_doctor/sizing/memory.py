"""Will it fit: the bytes on each GPU by part, and the longest context and most sequences."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from volta_doctor.catalog import compat
from volta_doctor.catalog.engines import Engine
from volta_doctor.facts.model import Missing
from volta_doctor.preflight.subject import Cards
from volta_doctor.sizing.activations import activation_bytes
from volta_doctor.sizing.cache import Cache, caches
from volta_doctor.sizing.plan import MemoryPlan, Parts
from volta_doctor.sizing.split import Split
from volta_doctor.sizing.weights import Weights, by_gpu
from volta_runtime.checkpoint.architecture import Architecture

__all__ = ["MemoryPlan", "Parts", "plan_of"]

_TOKENS, _SEQUENCES = 1 << 24, 1 << 16  # where the search for what fits ends
_GB = 1e9


def plan_of(
    weights: Weights,
    engine: Engine,
    cards: Cards,
    split: Split,
    *,
    context: int,
    concurrency: int,
    utilization: float | None = None,
    kv_cache: str = "auto",
    eager: bool = False,
) -> MemoryPlan:
    """Work out whether a model fits; all that is counted is in bytes on each GPU.

    weights: of the model, counted once for all ways to split it. The GPUs are the first of the
    cards. context: tokens of each sequence, of which there are `concurrency`. utilization: the
    share of a GPU that the engine may take, None for its own. kv_cache: the cache's type as the
    engine's flag names it. eager: without CUDA graphs.

    Raises Missing naming what the model does not tell, or what is not known of the engine or cards.
    """
    a, gpus = weights.architecture, split.gpus
    if len(cards.total) < gpus:
        raise Missing(f"{gpus} GPUs are asked for, and {len(cards.total)} are known.")
    totals, used = usable(cards)[:gpus], cards.used[:gpus]
    places = places_of(a, split, totals)
    memory, row = engine.memory, engine.cache(kv_cache)
    if row is None:
        known = ", ".join(row.name for row in engine.kv_cache)
        raise Missing(f"{engine.title} has no KV cache type {kv_cache} (known: {known}).")
    share = utilization or memory.utilization or 1.0
    layers = by_gpu(weights, split, places)
    kept = caches(
        a,
        split,
        places,
        value_bytes=row.bytes,
        block=memory.block,
        step=memory.step_tokens,
    )

    def parts(tokens: int, sequences: int) -> list[Parts]:
        each = -(-sequences // split.replicas)
        return [
            Parts(
                weights=layers[gpu][0],
                embeddings=layers[gpu][1],
                kv_cache=each * kept[gpu].sequence(tokens),
                state=each * memory.states * kept[gpu].state,
                activations=activation_bytes(a, memory, split, each),
                graphs=memory.graph_bytes if memory.graphs and not eager else 0,
                context=memory.context_bytes,
                neighbours=used[gpu],
            )
            for gpu in range(gpus)
        ]

    budget = tuple(
        min(total, int(share * total) + held) for total, held in zip(totals, used, strict=True)
    )

    def fits(tokens: int, sequences: int) -> bool:
        found = parts(tokens, sequences)
        return all(part.total <= limit for part, limit in zip(found, budget, strict=True))

    longest = a.max_position or _TOKENS
    return MemoryPlan(
        gpus=tuple(parts(context, concurrency)),
        budget=budget,
        fits=fits(context, concurrency),
        kv_bytes_per_token=max(cache.per_token for cache in kept),
        max_context=_greatest(longest, lambda tokens: fits(tokens, concurrency)),
        max_concurrency=_greatest(_SEQUENCES, lambda sequences: fits(context, sequences)),
        notes=tuple(_notes(weights, split, totals, used, share, kept)),
    )


def usable(cards: Cards) -> tuple[int, ...]:
    """Return the bytes of each GPU that CUDA lets programs have: a little less than NVML tells."""
    card = compat().cards.get(cards.model)
    return tuple(min(total, card.cuda_memory) if card else total for total in cards.total)


def places_of(architecture: Architecture, split: Split, totals: Sequence[int]) -> list[int]:
    """Return the stage of each layer, none where there is one alone.

    llama.cpp deals layers out by the GPUs' memory, and counts the output as one more (llama.cpp
    src/llama-model.cpp); pipelines deal them out evenly (vLLM distributed/utils.py:
    get_pp_indices).
    """
    count = len(architecture.layers)
    if split.depth == 1:
        return []
    if not split.by_layer:
        return [n * split.depth // count for n in range(count)]
    ends = [end / sum(totals) for end in accumulate(totals)]
    return [
        next((gpu for gpu, end in enumerate(ends) if n / (count + 1) < end), len(ends) - 1)
        for n in range(count)
    ]


def _greatest(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the greatest number up to the limit for which it holds, 0 where it holds for none."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _notes(
    weights: Weights,
    split: Split,
    totals: Sequence[int],
    used: Sequence[int],
    share: float,
    kept: Sequence[Cache],
) -> list[str]:
    """Say what is estimated, and where a sum in the head goes wrong."""
    a = weights.architecture
    notes = ["The activations are estimated from the widths of the layers."]
    if weights.estimated:
        notes.append(weights.estimated)
    if weights.packed:
        bits = weights.packed_bytes * 8 / weights.packed
        plain = weights.parameters * int(bits) / 8
        notes.append(
            f"{weights.parameters / _GB:.1f} billion parameters in {int(bits)} bits would be"
            f" {plain / _GB:.1f} GB; with scales ({bits:.2f} bits) and what stays in 16 bits they"
            f" are {weights.bytes / _GB:.1f} GB."
        )
    if weights.skipped:
        notes.append(
            f"{weights.skipped / _GB:.1f} GB of multi-token prediction are not counted: they are"
            " loaded for speculative decoding alone."
        )
    if a.kv_heads and a.kv_heads < split.ranks and not a.kv_lora_rank:
        notes.append(
            f"{a.kv_heads} KV heads on {split.ranks} ranks: each rank holds a whole one, so the KV"
            f" cache of a GPU is no smaller than on {a.kv_heads}."
        )
    if a.kv_lora_rank and split.ranks > 1:
        notes.append("Every rank holds the whole latent KV cache (MLA).")
    if any(cache.state for cache in kept):
        notes.append("Linear-attention layers keep a state for each sequence, however long it is.")
    short = [gpu for gpu, held in enumerate(used) if held > (1 - share) * totals[gpu]]
    if short and any(used):
        gpu = short[0]
        notes.append(
            f"Others hold {used[gpu] / _GB:.1f} GB of GPU {gpu}: less than {share:g} of it is free,"
            " and vLLM's newer releases then do not start."
        )
    return notes
