"""Fields of config.json that no model has so: told, as what depends on them is not judged."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.architecture.config import SIZES, WRAPPERS, text_fields
from volta_runtime.checkpoint.architecture.layers import COUNTS
from volta_runtime.checkpoint.architecture.shape import LAYERS, whole
from volta_runtime.checkpoint.faults import Fault, Level
from volta_runtime.checkpoint.quantization.fields import brief

# What a model is made of: an engine that takes another value dies, or makes another model.
_NEEDED = (
    "hidden_size", "intermediate_size", "vocab_size", "heads", "kv_heads", "head_dim", "experts",
    "experts_per_token", "expert_size",
)  # fmt: skip
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "architectures": ((list,), "a list of names"),
    "model_type": ((str,), "a name"),
    "tie_word_embeddings": ((bool,), "true or false"),
    "torch_dtype": ((str, dict), "the name of a type"),
    "dtype": ((str, dict), "the name of a type"),
    "layer_types": ((list,), "a list of kinds"),
}


def field_faults(config: Mapping[str, Any], file: Path) -> Iterator[Fault]:
    """The fields whose values are of a wrong type, or sizes that are none."""
    for key in WRAPPERS:
        if not isinstance(config.get(key, {}), Mapping | None):
            yield _fault(file, key, config[key], "an object", "fail")
    text = text_fields(config)
    for key in COUNTS:
        value = text.get(key)
        if value is not None and ((count := whole(value)) is None or count > LAYERS):
            yield _fault(file, key, value, f"a whole number of layers up to {LAYERS}", "fail")
    for key in (name for size in _NEEDED for name in SIZES[size]):
        if not _is_size(text.get(key)):
            yield _fault(file, key, text[key], "a whole number that can be a size", "fail")
    for key, (types, expected) in _TYPES.items():
        if text.get(key) is not None and not isinstance(text[key], types):
            yield _fault(file, key, text[key], expected, "warn")


def _is_size(value: object) -> bool:
    """Whether it is one, or a list with one for each layer, where some may have none."""
    if isinstance(value, list):
        return bool(value) and all(
            isinstance(item, bool | list) or item is None or whole(item) is not None
            for item in value
        )
    return value is None or whole(value) is not None


def _fault(file: Path, key: str, value: object, expected: str, level: Level) -> Fault:
    found = brief(value)
    text = f"{key} is {found}, not {expected}"
    return Fault("config-json", text, file, "", expected, found, level)
