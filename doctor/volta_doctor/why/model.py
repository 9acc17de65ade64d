"""What a case tells of a model: its configs, the flags it is served with, its tensors."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from volta_doctor.findings import Evidence
from volta_doctor.logs.parts import Config
from volta_doctor.logs.text import Line, Text
from volta_doctor.why.case import Case

_TP = re.compile(
    r"tensor[-_]parallel[-_]size['\"]?[ =:]{1,3}(\d+)"
    r"|(?:serve|server|sglang|vllm|lmdeploy|python).{0,300}\s--?tp(?:-size)?[ =](\d+)",
    re.IGNORECASE,
)
_KV = re.compile(r"--kv[-_]cache[-_]dtype[ =]+([\w.]+)|kv_cache_dtype=['\"]?([\w.]+)")
_DTYPE = re.compile(r"--dtype[ =]+([\w.]+)|\bdtype=['\"]?(?:torch\.)?(float16|bfloat16|float32)")
_COMMAND = re.compile(r"--model\b|--tensor-parallel-size|--kv-cache-dtype|vllm serve|--dtype\b")

# How tools name the types of tensors, by the name in a safetensors header.
_TYPES = {
    "F8_E4M3": r"F8_E4M3|float8_e4m3fn|e4m3fn",
    "BF16": r"BF16|bfloat16",
    "F16": r"F16|float16|FP16|half",
    "F32": r"F32|float32|FP32",
    "U8": r"U8|uint8",
    "I32": r"I32|int32",
    "I8": r"I8|int8",
}
_TYPE = re.compile(
    "|".join(rf"(?P<{name}>(?<![A-Za-z0-9])(?:{ways})(?![A-Za-z0-9]))"
             for name, ways in _TYPES.items()),
    re.IGNORECASE,
)  # fmt: skip
_KINDS = "weight_packed|weight_scale_inv|weight_scale_2|weight_scale|weight_global_scale"
_TENSOR = re.compile(
    rf"[\w.]*\w\.(?:{_KINDS}|input_global_scale|input_scale|qweight|qzeros|scales|weight)\b"
    rf"|(?<![\w.])(?:{_KINDS})(?=[\"' :=|,\t])"
)
_CODE = re.compile(r"self\.|torch\.(?:empty|zeros|ones|tensor)|Parameter\(|\.to\(|\.data\b|assert ")
_MAY_NAME = re.compile(r"\.weight\b|weight_|scale|qzeros|qweight")
_SHAPE = re.compile(r"[\[(]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[\])]")
_VALUE = re.compile(r"(?<![\w.\[(,])(\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?![\w.])")
_MOST_TENSORS = 4_000  # more of a listing tell nothing new (ours)
_REACH = 160  # characters behind a name in which its type, shape and value stand


class Tensor(NamedTuple):
    """A tensor as a listing shows it; what is not shown is None."""

    name: str
    type: str | None
    shape: tuple[int, ...] | None
    value: float | None
    evidence: Evidence

    @property
    def module(self) -> str:
        """The layer that it belongs to."""
        return self.name.rpartition(".")[0]

    @property
    def kind(self) -> str:
        """What it is of its layer."""
        return self.name.rpartition(".")[2]


class Told(NamedTuple):
    """A value and the line that tells it."""

    value: str
    evidence: list[Evidence]


def text_config(config: Config) -> dict[str, Any]:
    """Return the fields of config.json, those of its text model first."""
    inner = config.content.get("text_config")
    return config.content | inner if isinstance(inner, dict) else config.content


def quantization(config: Config) -> dict[str, Any]:
    """Return quantization_config of config.json, empty where there is none."""
    outer = config.content
    found = outer.get("quantization_config") or text_config(config).get("quantization_config")
    if not found and "quant_method" in outer:  # the file quantize_config.json
        found = outer
    return found if isinstance(found, dict) else {}


def modelopt(config: Config) -> dict[str, Any]:
    """Return what hf_quant_config.json says, empty for another file."""
    found = config.content.get("quantization")
    return found if isinstance(found, dict) and "quant_algo" in found else {}


def group_sizes(quantized: dict[str, Any]) -> list[int]:
    """Return the group sizes that a quantization_config declares, -1 and 0 left out."""
    groups = quantized.get("config_groups")
    declared = [quantized.get("group_size"), quantized.get("q_group_size")]
    if isinstance(groups, dict):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict):
                declared.append(weights.get("group_size"))
    block = quantized.get("weight_block_size")
    if isinstance(block, list) and block:
        declared.append(block[-1])
    return sorted({size for size in declared if isinstance(size, int) and size > 0})


def tensor_parallel(case: Case) -> int | None:
    """Return the tensor-parallel size that the case shows."""
    if case.flags.tensor_parallel_size:
        return case.flags.tensor_parallel_size
    found = _first(case, _TP)
    return int(found.value) if found else None


def kv_cache_dtype(case: Case) -> Told | None:
    """Return --kv-cache-dtype as the case shows it; `auto` for a server that was not told."""
    if case.flags.kv_cache_dtype:
        told = _first(case, _KV)
        return Told(case.flags.kv_cache_dtype, told.evidence if told else [])
    found = _first(case, _KV)
    if found:
        return found
    shown = case.lines(_COMMAND, 1)
    return Told("auto", shown) if shown else None


def dtype(case: Case) -> str | None:
    """Return --dtype as the case shows it, `float16` for half."""
    found = case.flags.dtype or (told.value if (told := _first(case, _DTYPE)) else None)
    return {"half": "float16", "fp16": "float16", "bf16": "bfloat16"}.get(found or "", found)


@lru_cache(maxsize=1)
def naming_lines(case: Case) -> list[tuple[Text, Line]]:
    """Return the lines that may name a tensor of a quantised layer: few of them do."""
    if not case.lines(_MAY_NAME, 1):
        return []
    return [(text, line) for text, line in case.each_line() if _MAY_NAME.search(line.text)]


@lru_cache(maxsize=1)
def tensors(case: Case) -> list[Tensor]:
    """Return the tensors that listings in the case show."""
    return list(islice(_each_tensor(case), _MOST_TENSORS))


def tensor_names(case: Case) -> dict[str, str]:
    """Return the names of tensors that the case shows, those of an index with their shard."""
    found = {tensor.name: "" for tensor in tensors(case)}
    for _, line in naming_lines(case):
        found |= {m[0]: "" for m in _TENSOR.finditer(line.text) if "." in m[0]}
    for config in case.configs:
        shards = config.content.get("weight_map")
        if isinstance(shards, dict):
            found |= {str(name): str(shard) for name, shard in shards.items()}
    return found


def _each_tensor(case: Case) -> Iterator[Tensor]:
    for text, line in naming_lines(case):
        if _CODE.search(line.text):
            continue
        names = list(_TENSOR.finditer(line.text))
        for at, match in enumerate(names):
            end = names[at + 1].start() if at + 1 < len(names) else len(line.text)
            rest = line.text[match.end() : min(end, match.end() + _REACH)]
            kind, shape, value = _TYPE.search(rest), _SHAPE.search(rest), _VALUE.search(rest)
            if kind or shape or value:
                sizes = tuple(int(n) for n in shape[1].split(",")) if shape else None
                number = float(value[1]) if value and not (sizes and len(sizes) > 1) else None
                name = kind.lastgroup if kind else None
                yield Tensor(match[0], name, sizes, number, text.evidence(line))


def _first(case: Case, pattern: re.Pattern[str]) -> Told | None:
    for match, evidence in case.matching(pattern, sources=True):
        return Told(next(filter(None, match.groups())), [evidence])
    return None
