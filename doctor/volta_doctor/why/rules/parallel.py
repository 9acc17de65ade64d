"""Does the tensor-parallel size divide the model? Arithmetic on config.json and the flags."""

import re
from collections.abc import Iterator
from typing import Any

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.logs.parts import Config
from volta_doctor.sizing.parallel import KV_HEADS, uneven_groups, uneven_heads
from volta_doctor.why.case import Case
from volta_doctor.why.model import group_sizes, quantization, tensor_parallel, text_config
from volta_doctor.why.rules import rule

_HEADS = (
    "num_attention_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
    KV_HEADS,
)
_TP_LINE = re.compile(r"tensor.parallel.size|(?:^|\s)--?tp(?:-size)?[ =]\d", re.IGNORECASE)


def _models(case: Case) -> Iterator[tuple[Config, dict[str, Any], int]]:
    """Yield the configs of models that are split over several ranks."""
    ranks = tensor_parallel(case) if case.configs else None
    if ranks and ranks > 1:
        for config in case.configs:
            fields = text_config(config)
            if _number(fields, "num_attention_heads") or _number(fields, "hidden_size"):
                yield config, fields, ranks


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _places(case: Case, config: Config, name: str) -> list[Evidence]:
    found = [*case.lines(rf'"{name}"', 1), *case.lines(_TP_LINE, 1)]
    return found or [config.evidence]


@rule("tp-divides-heads")
def heads(case: Case, row: Row) -> Iterator[Finding]:
    """Attention is split by whole heads; of KV heads a rank may also hold a copy."""
    for config, fields, ranks in _models(case):
        counts = {name: count for name in _HEADS if (count := _number(fields, name))}
        for uneven in uneven_heads(counts, ranks):
            yield row.fail(uneven.text, *_places(case, config, uneven.subject))


@rule("tp-divides-groups")
def groups(case: Case, row: Row) -> Iterator[Finding]:
    """The inputs of a row-parallel layer are split, and a rank must hold whole groups."""
    for config, fields, ranks in _models(case):
        sizes = group_sizes(quantization(config))
        for name, size in _row_parallel(case, fields) if sizes else ():
            if uneven := uneven_groups(name, size, max(sizes), ranks):
                yield row.fail(uneven.text, *_places(case, config, name.split(" ")[0]))


def _row_parallel(case: Case, fields: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the input sizes of the layers that are split by their inputs."""
    if size := _number(fields, "intermediate_size"):
        yield "intermediate_size", size
    apart = case.lines(r"enable.expert.parallel|--ep-size|--expert-parallel", 1)
    if (size := _number(fields, "moe_intermediate_size")) and not apart:
        yield "moe_intermediate_size", size
    heads, hidden = _number(fields, "num_attention_heads"), _number(fields, "hidden_size")
    dim = _number(fields, "head_dim") or (hidden // heads if heads else 0)
    if heads and dim:
        yield "num_attention_heads x head_dim", heads * dim
