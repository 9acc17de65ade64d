"""quantization_config: which weight format the config promises for each module.

The compressed-tensors form: config_groups, each with `targets` and a `weights` scheme, and an
`ignore` list. A target is an exact module name, `re:` and a regular expression matched from the
name's start, or a class name; the more exact one wins, and ignore wins over all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.formats import FORMATS

_DENSE = "dense"
_SCHEMES = {row.name: row.scheme for row in FORMATS if row.scheme is not None}
_SUPPORTED = (
    "supported: compressed-tensors NVFP4, weights only"
    " (num_bits 4, type float, strategy tensor_group, group_size 16), and unquantised weights"
)


@dataclass(frozen=True)
class QuantizationConfig:
    """targets: (target, weight format) in the config's order; ignore: targets kept dense."""

    targets: tuple[tuple[str, str], ...] = ()
    ignore: tuple[str, ...] = ()

    def format_of(self, module: str, class_name: str) -> str:
        """The weight format the config promises for a module of this class."""
        if any(_rank(target, module, class_name) is not None for target in self.ignore):
            return _DENSE
        ranked = [
            (rank, weight_format)
            for target, weight_format in self.targets
            if (rank := _rank(target, module, class_name)) is not None
        ]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else _DENSE


def _rank(target: str, module: str, class_name: str) -> int | None:
    """0 exact name, 1 regular expression, 2 class name, None no match."""
    if target == module:
        return 0
    if target.startswith("re:"):
        return 1 if re.match(target[3:], module) else None
    return 2 if target == class_name else None


def parse_quantization(file: Path, config: Mapping[str, Any]) -> QuantizationConfig:
    """Read config.json's quantization_config; absent means that every module is dense.

    Raises CheckpointError naming the field for a method or scheme that is not supported.
    """
    entry = config.get("quantization_config")
    if entry is None:
        return QuantizationConfig()
    if not isinstance(entry, dict):
        raise CheckpointError(f"{file}: quantization_config is not an object: {entry!r}")
    method = entry.get("quant_method")
    if method != "compressed-tensors":
        raise CheckpointError(
            f"{file}: quantization_config.quant_method {method!r} is not supported by this"
            f" version; {_SUPPORTED}"
        )
    targets: list[tuple[str, str]] = []
    for name, group in _expect(file, entry, "config_groups", dict).items():
        where = f"{file}: quantization_config.config_groups.{name}"
        if not isinstance(group, dict):
            raise CheckpointError(f"{where} is not an object: {group!r}")
        weight_format = _scheme(where, group)
        targets += [
            (target, weight_format) for target in _patterns(where, "targets", group.get("targets"))
        ]
    ignore = _patterns(f"{file}: quantization_config", "ignore", entry.get("ignore") or [])
    return QuantizationConfig(tuple(targets), tuple(ignore))


def _scheme(where: str, group: Mapping[str, Any]) -> str:
    activations = group.get("input_activations")
    if activations is not None:
        raise CheckpointError(
            f"{where}: quantised input_activations are not supported by this version; {_SUPPORTED}"
        )
    weights = group.get("weights")
    for name, scheme in _SCHEMES.items():
        if isinstance(weights, dict) and scheme == {key: weights.get(key) for key in scheme}:
            return name
    raise CheckpointError(
        f"{where}: weights scheme {_brief(weights)} is not supported by this version; {_SUPPORTED}"
    )


def _brief(weights: Any) -> str:
    keys = next(iter(_SCHEMES.values()))
    if not isinstance(weights, dict):
        return repr(weights)
    return "(" + ", ".join(f"{key} {weights.get(key)}" for key in keys) + ")"


def _expect(file: Path, entry: Mapping[str, Any], key: str, kind: type) -> Any:
    value = entry.get(key)
    if not isinstance(value, kind):
        raise CheckpointError(
            f"{file}: quantization_config.{key} is {value!r}, expected {kind.__name__};"
            " the checkpoint's config is incomplete"
        )
    return value


def _patterns(where: str, key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{where}: {key} is {value!r}, expected a list of strings")
    for item in value:
        if item.startswith("re:"):
            try:
                re.compile(item[3:])
            except re.error as error:
                raise CheckpointError(
                    f"{where}: {key} {item!r} is no regular expression: {error}"
                ) from error
    return value
