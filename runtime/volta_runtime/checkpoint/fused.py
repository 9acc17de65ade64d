"""Modules that engines join to one layer: what differs between the parts may be lost there."""

from collections.abc import Iterable, Iterator

# The name of the layer, and the last components of its parts' names in the order of their rows, as
# in vLLM's packed_modules_mapping: attention, MLPs, experts, gated delta nets, MLA.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13": ("w1", "w3"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
_PARTS = {part: parts for parts in FUSED.values() for part in parts}


def fused(modules: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The names of modules that one layer is made of, where two or more of its parts are there."""
    layers: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
    for name in modules:
        parent, _, part = name.rpartition(".")
        if parts := _PARTS.get(part):
            layers.setdefault((parent, parts), {})[part] = name
    for (_, parts), found in layers.items():
        if len(found) > 1:
            yield tuple(found[part] for part in parts if part in found)
