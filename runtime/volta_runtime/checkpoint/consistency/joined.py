"""The parts of a layer that engines join: one format and one size of groups for all."""

from collections.abc import Collection, Iterator, Mapping

from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.fused import fused
from volta_runtime.checkpoint.module import Module


def joined(modules: Mapping[str, Module], told: Collection[str]) -> Iterator[Fault]:
    """The layers whose parts differ in format or group, and none for a reason that is told.

    told: the modules that are not what their config promises, by name.
    """
    for names in fused(modules):
        parts = [modules[name] for name in names]
        if any(part.format is None or (part.quantised and part.group is None) for part in parts):
            continue  # of which the part's own fault tells
        if any(name in told for name in names):
            continue
        if len({_kind(part) for part in parts}) < 2:
            continue
        first, odd = parts[0], next(p for p in parts if _kind(p) != _kind(parts[0]))
        held = ", ".join(f"{part.name.rpartition('.')[2]} is {_kind(part)}" for part in parts)
        info = next(iter(odd.tensors.values()))
        text = f"engines join it with {first.name} to one layer, and {held}"
        yield Fault("fused-schemes", text, info.file, odd.name, _kind(first), _kind(odd))


def _kind(module: Module) -> str:
    name = module.format.name if module.format else ""
    rows, columns = module.group or (0, 0)
    return f"{name} in groups of {columns}" if rows == 1 and columns else name
