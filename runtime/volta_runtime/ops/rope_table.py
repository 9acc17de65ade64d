"""Tables of cosines and sines for rotary embeddings, with the scalings models are published with.

Fields are named as in `rope_scaling` (`rope_parameters` since transformers 5) of a config.json.
Everything is float64 but for the table: at position 100,000 a float32 angle is off by 4e-3 rad.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK = 1 << 16  # positions whose float64 angles are held at a time


def rope_cache(
    rotary_dim: int,
    max_positions: int,
    theta: float,
    scaling: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Cosines, then sines, of every position: float32 [max_positions, rotary_dim].

    scaling: a config's fields, of which `rope_type` (formerly `type`) says how the frequencies are
    scaled: default, linear, dynamic, llama3, yarn, longrope or proportional (whose
    `partial_rotary_factor` of the pairs turn, while rotary_dim is the whole head's). None is
    default. Fields it does not need are ignored, `rope_theta` among them. dynamic and longrope,
    which elsewhere follow a sequence's length, are fixed at max_positions here. Factors on the
    attention's logits (yarn, longrope) are part of the table, as queries and keys both take them.
    Raises ValueError naming what is missing, malformed or unknown.
    """
    if rotary_dim <= 0 or rotary_dim % 2 or max_positions <= 0 or not theta > 1:
        raise ValueError(
            f"rotary_dim {rotary_dim}, max_positions {max_positions}, theta {theta}: needs an even "
            "number of dimensions, at least one position and a theta above 1"
        )
    fields = _Fields(scaling or {})
    rope = _Rope(rotary_dim, max_positions, theta, fields)
    if not isinstance(fields.rope_type, str) or fields.rope_type not in _TYPES:
        raise ValueError(f"rope_type {fields.rope_type!r} is unknown; known: {', '.join(_TYPES)}")
    frequencies, attention_factor = _TYPES[fields.rope_type](rope)
    table = torch.empty(max_positions, rotary_dim)
    for start in range(0, max_positions, _CHUNK):
        rows = table[start : start + _CHUNK]
        positions = torch.arange(start, start + len(rows), dtype=torch.float64)
        angles = torch.outer(positions, frequencies)
        rows[:, : rotary_dim // 2] = angles.cos() * attention_factor
        rows[:, rotary_dim // 2 :] = angles.sin() * attention_factor
    return table.to(device)


class _Fields:
    """A config's fields, each read as a positive number; null and 0 are as good as absent."""

    def __init__(self, scaling: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in scaling.items() if value or value is False}
        self.rope_type = self._given.get("rope_type", self._given.get("type", "default"))
        self.truncate = self._given.get("truncate", True)
        if not isinstance(self.truncate, bool):
            raise ValueError(f"truncate is {self.truncate!r}, needs true or false")

    def get(self, name: str, default: float) -> float:
        return self._number(name, self._given.get(name, default))

    def need(self, name: str) -> float:
        return self._number(name, self._needed(name))

    def need_list(self, name: str, length: int) -> Tensor:
        values = self._needed(name)
        if not isinstance(values, list) or len(values) != length:
            raise ValueError(f"{name} of rope type {self.rope_type} needs a list of {length}")
        return torch.tensor([self._number(name, v) for v in values], dtype=torch.float64)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def _needed(self, name: str) -> Any:
        if name not in self._given:
            raise ValueError(f"rope type {self.rope_type} needs the field {name}")
        return self._given[name]

    def _number(self, name: str, value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise ValueError(f"{name} of rope type {self.rope_type} is {value!r}, needs above 0")
        return float(value)


@dataclass(frozen=True)
class _Rope:
    dim: int
    length: int
    theta: float
    fields: _Fields

    def frequencies(self, theta: float | None = None) -> Tensor:
        """Radians a position of each pair, unscaled."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim
        return (theta or self.theta) ** -exponents


_Scaled = tuple[Tensor, float]  # frequencies [dim / 2] and the factor of cosines and sines


def _default(rope: _Rope) -> _Scaled:
    return rope.frequencies(), 1.0


def _linear(rope: _Rope) -> _Scaled:
    return rope.frequencies() / rope.fields.need("factor"), 1.0


def _dynamic(rope: _Rope) -> _Scaled:
    factor = rope.fields.need("factor")
    stretch = max(rope.length / rope.fields.need("original_max_position_embeddings"), 1.0)
    grown = (factor * stretch - (factor - 1)) ** (rope.dim / (rope.dim - 2))
    return rope.frequencies(rope.theta * grown), 1.0


def _llama3(rope: _Rope) -> _Scaled:
    low, high = rope.fields.need("low_freq_factor"), rope.fields.need("high_freq_factor")
    original = rope.fields.need("original_max_position_embeddings")
    frequencies = rope.frequencies()
    turns = original * frequencies / (2 * math.pi)  # within the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / rope.fields.need("factor")), 1.0


def _yarn(rope: _Rope) -> _Scaled:
    fields, factor = rope.fields, rope.fields.need("factor")
    original = fields.need("original_max_position_embeddings")

    def pair_of(turns: float) -> float:
        """The pair, not a whole number, that turns so often within the original context."""
        return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_of(fields.get("beta_fast", 32.0)), pair_of(fields.get("beta_slow", 1.0))
    if fields.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    pairs = torch.arange(rope.dim // 2, dtype=torch.float64)
    scaled = ((pairs - first) / max(last - first, 0.001)).clamp(0, 1)
    frequencies = rope.frequencies() * (1 - scaled + scaled / factor)

    def strength(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    if "mscale" in fields and "mscale_all_dim" in fields:
        attention_factor = strength(fields.need("mscale")) / strength(fields.need("mscale_all_dim"))
    else:
        attention_factor = strength(1.0)
    return frequencies, fields.get("attention_factor", attention_factor)


def _longrope(rope: _Rope) -> _Scaled:
    fields = rope.fields
    original = fields.need("original_max_position_embeddings")
    lists = [fields.need_list(f"{name}_factor", rope.dim // 2) for name in ("short", "long")]
    frequencies = rope.frequencies() / lists[rope.length > original]
    if "attention_factor" in fields:
        return frequencies, fields.need("attention_factor")
    factor = fields.need("factor")
    return frequencies, math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))


def _proportional(rope: _Rope) -> _Scaled:
    turning = int(rope.fields.get("partial_rotary_factor", 1.0) * rope.dim // 2)
    frequencies = rope.frequencies() / rope.fields.get("factor", 1.0)
    frequencies[turning:] = 0
    return frequencies, 1.0


_TYPES: dict[str, Callable[[_Rope], _Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
