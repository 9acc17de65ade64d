"""Two configs of one checkpoint: what each promises of the same modules."""

from collections.abc import Iterator, Mapping

from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization import Config, Quantization
from volta_runtime.checkpoint.quantization.classes import class_of
from volta_runtime.checkpoint.scheme import Scheme


def two_configs(quantization: Quantization, modules: Mapping[str, Module]) -> Iterator[Fault]:
    """The modules of which a second config promises something else than the first."""
    for other in quantization.configs[1:]:
        first = quantization.configs[0]
        if other.method != first.method:
            yield Fault(
                "quant-conflict",
                f"the method is {other.method}, and {first.file.name} says {first.method}",
                other.file,
                expected=first.method,
                found=other.method,
            )
        elif not first.same_as(other):
            yield from _by_module(first, other, modules)


def _by_module(first: Config, other: Config, modules: Mapping[str, Module]) -> Iterator[Fault]:
    for module in modules.values():
        class_name = class_of(module.name, module.tensors)
        if class_name not in ("Linear", "Experts", "Embedding"):
            continue
        mine, theirs = (c.scheme_of(module.name, class_name) for c in (first, other))
        if mine is None and theirs is None:
            continue
        expected, found = _said(mine), _said(theirs)
        sized = mine is not None and theirs is not None and mine.format == theirs.format
        told = all(scheme is not None and scheme.group is not None for scheme in (mine, theirs))
        if expected == found or (sized and not told):
            continue
        text = f"is {found} here, and {expected} in {first.file.name}"
        check = "group-size-config" if sized else "quant-conflict"
        yield Fault(check, text, other.file, module.name, expected, found)


def _said(scheme: Scheme | None) -> str:
    if scheme is None:
        return "left unquantised"
    rows, columns = scheme.group or (0, 0)
    size = f" in groups of {columns}" if rows == 1 and columns > 1 else ""
    return f"{scheme.format}{size}"
