"""A module's tensors against what the config promises of it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault, Level
from volta_runtime.checkpoint.formats import BY_NAME
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization import Quantization
from volta_runtime.checkpoint.quantization.names import plain
from volta_runtime.checkpoint.scheme import Scheme

_DIVISOR, _FACTOR = "weight_global_scale", "weight_scale_2"
# What the names of global scales are in the methods that have written rules for them.
_DIRECTIONS = {"compressed-tensors": _DIVISOR, "modelopt": _FACTOR}
_VERBS = {_DIVISOR: "divide by", _FACTOR: "multiply by"}


def schemes(
    contents: Contents, quantization: Quantization, modules: Mapping[str, Module]
) -> Iterator[Fault]:
    """The modules whose tensors are not what their config promises."""
    if quantization.faults and not quantization.configs:
        return  # no promise could be read, which is told
    if not quantization.configs:
        packed = next((module for module in modules.values() if module.quantised), None)
        if packed is not None:
            yield _fault(
                packed,
                contents.path / "config.json",
                f"is stored as {_name(packed)}, and neither config.json nor hf_quant_config.json"
                " has a quantisation config",
                "a quantization_config",
                "none",
            )
        return
    file = quantization.configs[0].file
    for module in modules.values():
        if module.scheme is None:
            if module.quantised:
                text = f"is stored as {_name(module)}, and the config leaves it unquantised"
                yield _fault(module, file, text, "dense", _name(module))
        elif module.format is not None:
            yield from _against(module, module.scheme, quantization.method)


def _against(module: Module, scheme: Scheme, method: str) -> Iterator[Fault]:
    found = _name(module)
    # A word that is no format here is told as such: whether the tensors are in it is not known.
    fits = found == scheme.format or found in scheme.also or scheme.format not in BY_NAME
    if not module.quantised:
        # Engines draft without the layers of multi-token prediction, so the model is served.
        drafts = plain(module.name).startswith("mtp.")
        dtypes = "/".join(sorted({info.dtype for info in module.tensors.values()}))
        text = f"is {dtypes}, and {scheme.where} makes it {scheme.format}"
        yield _fault(
            module, scheme.file, text, scheme.format, dtypes, level="warn" if drafts else "fail"
        )
    elif not fits and not _other_direction(module, method):
        text = f"is stored as {found}, and {scheme.where} makes it {scheme.format}"
        yield _fault(module, scheme.file, text, scheme.format, found)
    elif fits and module.group and scheme.group and not _same_group(module, scheme.group):
        sizes = module.group[1] > 1 and scheme.group[1] > 1
        expected, held = _size(scheme.group), _size(module.group)
        yield _fault(
            module,
            scheme.file,
            f"has a scale for {held}, and {scheme.where} says {expected}",
            expected,
            held,
            check="group-size-config" if sizes else "quant-conflict",
        )


def directions(quantization: Quantization, modules: Mapping[str, Module]) -> Iterator[Fault]:
    """Global scales whose names contradict the method, and methods without a rule for them."""
    expected = _DIRECTIONS.get(quantization.method)
    untold = None
    for module in modules.values():
        names = [name for name in (_DIVISOR, _FACTOR) if name in module.tensors]
        if len(names) == 2:
            info = module.tensors[_FACTOR]
            text = f"{module.name} has {_DIVISOR} and {_FACTOR}: one divides, the other multiplies"
            yield Fault("scale-direction", text, info.file, info.name, "one of the two", "both")
        elif names and expected and names[0] != expected:
            info = module.tensors[names[0]]
            text = f"{quantization.method} would {_VERBS[expected]} {expected}, and this is to be"
            text += " divided by" if names[0] == _DIVISOR else " multiplied by"
            yield Fault("scale-direction", text, info.file, info.name, expected, names[0])
        elif names and not expected and quantization.configs:
            untold = untold or module.tensors[names[0]]
    if untold is not None:
        text = f"no written rule says in which direction {quantization.method!r} applies it"
        yield Fault(
            "scale-direction", text, untold.file, untold.name, " or ".join(_DIRECTIONS),
            quantization.method, "warn",
        )  # fmt: skip


def _other_direction(module: Module, method: str) -> bool:
    """Whether directions() tells of the module, and more rightly."""
    expected = _DIRECTIONS.get(method)
    other = {_DIVISOR: _FACTOR, _FACTOR: _DIVISOR}.get(expected or "")
    return other is not None and other in module.tensors


def _same_group(module: Module, promised: tuple[int, int]) -> bool:
    """Whether both mean the same scales: a group as long as the row is the row, a block as large
    as the weight the tensor.
    """
    rows, columns = module.shape[-2:] if len(module.shape) > 1 else (0, 0)

    def normal(group: tuple[int, int]) -> tuple[int, int]:
        if group[0] >= rows > 1 and group[1] >= columns:
            return 0, 0
        return (group[0], 0) if group[1] >= columns > 0 and group[0] == 1 else group

    return normal(module.group or promised) == normal(promised)


def _size(group: tuple[int, int]) -> str:
    rows, columns = group
    if rows == 0:
        return "the whole tensor"
    if columns == 0:
        return "a whole row"
    return f"{columns} weights" if rows == 1 else f"a block of {rows} x {columns}"


def _name(module: Module) -> str:
    return module.format.name if module.format else "no known format"


def _fault(
    module: Module,
    file: Path,
    message: str,
    expected: str,
    found: str,
    check: str = "quant-conflict",
    level: Level = "fail",
) -> Fault:
    return Fault(check, message, file, module.name, expected, found, level)
