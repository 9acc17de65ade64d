"""A checkpoint's config.json, hf_quant_config.json and index, and listings of its files."""

import re
from collections.abc import Iterator
from typing import Any

from volta_doctor.facts.checkpoint import CheckpointFacts, CheckpointsFacts, shape_of
from volta_doctor.facts.model import Facts
from volta_doctor.logs.parts import Config, Listed, Part, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._json import objects
from volta_doctor.logs.readers._names import SERVER
from volta_doctor.logs.text import Line, Text

_KEYS = frozenset(
    {
        "model_type", "architectures", "hidden_size", "num_attention_heads", "num_hidden_layers",
        "intermediate_size", "quantization_config", "quantization", "text_config", "weight_map",
        "quant_method", "config_groups", "kv_cache_scheme", "kv_cache_quant_algo", "quant_algo",
        "num_key_value_heads", "torch_dtype",
    }
)  # fmt: skip
_OF_QUANTIZATION = ("quant_method", "config_groups", "kv_cache_scheme")
_NAME = re.compile(r"\b((?:hf_quant_|quantize_|quantization_)?config\.json|[\w.-]+\.index\.json)\b")
_NEAR = 3  # lines above an object in which its file is named
_LONG = re.compile(
    r"[-dl][rwxsStT-]{9}[+.@]?\s+\d+\s+\S+\s+\S+\s+([\d.]+[KMGT]?)B?\s+(?:\w{3}\s+\d+\s+[\d:]+"
    r"|\d{4}-\d\d-\d\d\s+[\d:.]+(?:\s+[+-]\d{4})?|\d+月\s*\d+日?\s+[\d:]+)\s+(.+?)(?:\s+->\s.*)?$"
)
_DU = re.compile(
    r"([\d.]+)\s?([KMGT])i?B?\s+((?:\S*/)?\S+\.(?:safetensors|bin|gguf|json|model|pt))$"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@reader(*(f'"{key}"' for key in sorted(_KEYS)), after=200)
def configs(text: Text) -> Iterator[Part]:
    """Yield JSON objects with keys of a checkpoint, and the model's shape as they tell it."""
    found: list[Config] = []
    for content, line in objects(text):
        if not _KEYS.isdisjoint(content):
            if "model_type" not in content and any(key in content for key in _OF_QUANTIZATION):
                content = {"quantization_config": content}
            found.append(Config(_name(text, line, content), content, text.evidence(line)))
    if not found:
        return
    shape: dict[str, Any] = {}
    for config in found:
        shape = shape_of(config.content) | shape
        if isinstance(config.content.get("weight_map"), dict):
            shape = _weights(config.content) | shape
    facts = CheckpointsFacts(models=[CheckpointFacts(server=SERVER, **shape)])
    yield Part(Facts(checkpoint=section(facts)), configs=found)


def _weights(index: dict[str, Any]) -> dict[str, Any]:
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    files = {"format": "safetensors", "files": len(set(map(str, index["weight_map"].values())))}
    return files | ({"weight_bytes": int(size)} if isinstance(size, int | float) else {})


def _name(text: Text, line: Line, content: dict[str, Any]) -> str:
    """Return the name of an object's file: the text's, one above the object, or what it must be."""
    if match := _NAME.fullmatch(text.name.rsplit("/", 1)[-1]):
        return match[1]
    above = [n for n in text.lines if line.number - _NEAR <= n.number <= line.number]
    for near in reversed(above):
        if match := _NAME.search(near.text):
            return match[1]
    if "weight_map" in content:
        return "model.safetensors.index.json"
    is_modelopt = "quantization" in content and "model_type" not in content
    return "hf_quant_config.json" if is_modelopt else ""


@reader(".safetensors", "config.json", ".bin", ".gguf", "tokenizer", "-rw", after=80)
def listing(text: Text) -> Iterator[Part]:
    """Yield the files of `ls -l` and `du -h`."""
    found = []
    for line in text.lines:
        body = line.body
        if match := _LONG.search(body):
            found.append(Listed(match[2].strip(), _bytes(match[1]), text.evidence(line)))
        elif match := _DU.match(body):
            found.append(Listed(match[3], _bytes(match[1] + match[2]), text.evidence(line)))
    if found:
        yield Part(listed=found)


def _bytes(size: str) -> int:
    unit = size[-1] if size[-1] in _UNITS else ""
    number = size.removesuffix(unit)
    return round(float(number) * _UNITS[unit]) if number.replace(".", "", 1).isdigit() else 0
