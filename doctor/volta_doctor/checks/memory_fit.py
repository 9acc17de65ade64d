"""Does a model with its context fit into every GPU that it is spread over?"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from volta_doctor.catalog import Row, compat
from volta_doctor.catalog.engines import Memory, engines
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import per_server, ranks, tensor_parallel
from volta_doctor.checks.units import gib
from volta_doctor.facts.checkpoint import CheckpointFacts
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import value
from volta_doctor.facts.serve import Server
from volta_doctor.findings import Evidence, Finding

_GIB = 2**30
_ALWAYS, _WITH_GRAPHS = 1 * _GIB, 3 * _GIB
_HIGH = 0.95  # of the memory: less than 5 % is left for fragments and for CUDA's own context

_HALF_BYTES, _FLOAT_BYTES, _BYTE = 2, 4, 1


class Need(NamedTuple):
    """What one GPU must hold, in bytes; the KV cache by token, in layers of both kinds."""

    weights: float
    full: float
    sliding: float
    window: int
    sequences: int

    def kv(self, tokens: int) -> float:
        """The KV cache of all sequences of this length."""
        return self.sequences * (self.full * tokens + self.sliding * min(tokens, self.window))

    def longest(self, room: float) -> int:
        """The longest context whose KV cache fits into this room, 0 where none does."""
        room = max(0.0, room) / self.sequences
        if room < (self.full + self.sliding) * self.window:
            return int(room // (self.full + self.sliding))
        return int((room - self.sliding * self.window) // self.full) if self.full else 0


def need_of(server: Server, model: CheckpointFacts, engine: Memory) -> Need:
    """Work out what one GPU must hold. Raises Missing naming what the model does not tell."""
    flags = server.flags
    stages = flags.pipeline_parallel_size or 1
    width = tensor_parallel(server)
    fields = ("weight_bytes", "num_key_value_heads", "head_dim", "full_layers", "sliding_layers")
    if missing := [name for name in fields if getattr(model, name) is None]:
        reason = model.problem or f"{model.path} does not tell {', '.join(missing)}"
        raise Missing(f"The model's size is not known: {reason}.")
    weights, heads, dim, full, sliding = (getattr(model, name) for name in fields)
    floats = ("float32", "float")
    loaded = _FLOAT_BYTES if flags.dtype in floats else _HALF_BYTES
    stored = _FLOAT_BYTES if model.torch_dtype in floats else _HALF_BYTES
    if not model.quant_method and model.format != "gguf":
        weights = weights * loaded / stored
    cached = _BYTE if re.match(r"fp8|int8", flags.kv_cache_dtype or "") else loaded
    if model.kv_lora_rank:  # one latent vector a token, which every rank holds whole
        layer = (model.kv_lora_rank + (model.qk_rope_head_dim or 0)) * cached
    else:
        layer = 2 * heads * dim * cached / max(1, min(width, heads))
    sequences = (flags.max_num_seqs or engine.sequences) if engine.sequences else 1
    window = model.sliding_window or 0
    if not window:  # a window of unknown size holds all
        full, sliding = full + sliding, 0
    return Need(
        weights / width / stages,
        full * layer / stages,
        sliding * layer / stages,
        window,
        sequences or 1,
    )


def smallest_gpu(facts: Facts, server: Server) -> tuple[float, str]:
    """Return the bytes of the smallest GPU that a server uses, and who says so.

    Raises Missing where neither NVML nor a card's name tells.
    """
    try:
        totals = [value(gpu.memory.total) for gpu in ranks(facts, server)]
        told = [total for total in totals if total]
        if told and len(told) == len(totals):
            return min(told), "NVML"
        reason = "NVML does not tell it of every GPU"
    except Missing as missing:
        reason = str(missing)
    if facts.pci.data:
        ids = [card.device.removeprefix("0x") for card in facts.pci.data.gpus]
        names = [compat().volta.names.get(device, "") for device in ids]
    else:
        names = [value(gpu.name) or "" for gpu in facts.nvml.data.gpus] if facts.nvml.data else []
    sizes = [re.search(r"(\d+)GB", name) for name in names]
    if not sizes or None in sizes:
        raise Missing(f"The GPUs' memory is not known: {reason}")
    return min(int(size[1]) for size in sizes if size) * _GIB, f"its name ({names[0]})"


@check("mem-fit")
def mem_fit(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """What does not fit shows only after minutes of loading."""
    models = facts.checkpoint.need()
    return per_server(facts, row, lambda server: _judge(facts, row, server, models.of(server.name)))


def _judge(facts: Facts, row: Row, server: Server, model: CheckpointFacts | None) -> Finding:
    known, flags, name = engines().get(server.engine), server.flags, server.name
    engine = known.memory if known else engines()["vllm"].memory  # sglang takes it alike
    share = flags.gpu_memory_utilization or (engine.utilization if known else None)
    if share is None:
        text = f"{server.engine} divides the GPUs' memory by itself."
        return row.skip(text, subject=name)
    if model is None or server.flags_problem:
        reason = server.flags_problem or server.env_problem or "it names no model"
        return row.unknown(f"What it is to load is not known: {reason}.", subject=name)
    tokens = flags.max_model_len or model.max_position_embeddings
    need = need_of(server, model, engine)
    total, told_by = smallest_gpu(facts, server)
    if tokens is None:
        return row.unknown("Neither flags nor model tell its context length.", subject=name)
    budget = share * total
    base = need.weights + need.kv(tokens)
    graphs = engine.graphs and not flags.enforce_eager
    spare = _WITH_GRAPHS if graphs else _ALWAYS
    several = f"{need.sequences} x " if need.sequences > 1 else ""
    seen = [
        Evidence(model.path or "", f"{model.weight_bytes} bytes of weights"),
        Evidence(told_by, f"{total:.0f} bytes of memory on the smallest GPU"),
    ]

    def spell(extra: float) -> str:
        return (
            f"weights {gib(need.weights)} + KV cache of {several}{tokens} tokens"
            f" {gib(need.kv(tokens))} + {gib(extra)} = {gib(base + extra)} for each GPU,"
            f" {share:g} x {gib(total)} = {gib(budget)}"
        )

    def remedy(extra: float) -> str:
        longest = need.longest(budget - need.weights - extra)
        return f"--max-model-len {longest} would fit" if longest else "no context length would fit"

    if base + _ALWAYS > budget:
        text = f"It does not fit: {spell(_ALWAYS)}; {remedy(_ALWAYS)}."
        return row.fail(text, *seen, subject=name)
    if base + spare > budget:
        text = f"CUDA graphs may not fit: {spell(spare)}; {remedy(spare)}."
        return row.warn(text, *seen, subject=name)
    if (flags.gpu_memory_utilization or 0) > _HIGH:
        text = f"It fits, but --gpu-memory-utilization {share:g} leaves under 5 %: {spell(spare)}."
        return row.warn(text, *seen, subject=name)
    return row.ok(f"It fits: {spell(spare)}.", *seen, subject=name)
