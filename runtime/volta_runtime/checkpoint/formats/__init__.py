"""Weight formats: one file for each family, one row for each format.

A format is recognised by the names, dtypes and shapes of a module's tensors, never by magnitudes.
Where rows look alike (ModelOpt's NVFP4 and TensorRT-LLM's) the config decides, else the first.

A new format: its row in a file here and in FORMATS, its dequantiser in quant.DEQUANTIZERS, and
where a parameter's name is a word of other tensors too, that word in _COMMON. What a config calls
it is in quantization/, what engines make of it in the doctor's catalog/engines.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache

from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.formats import (
    awq,
    bitsandbytes,
    dense,
    fp8,
    gguf,
    gptq,
    integers,
    mxfp4,
    nvfp4,
)
from volta_runtime.checkpoint.formats.reading import (
    Reading,
    Signature,
    is_buffer,
    match,
    read,
    signature,
)
from volta_runtime.checkpoint.formats.row import Parameter, Parameters, WeightFormat
from volta_runtime.checkpoint.scheme import Scheme
from volta_runtime.checkpoint.tensors import TensorInfo

__all__ = [
    "BY_NAME",
    "FORMATS",
    "Parameter",
    "Reading",
    "WeightFormat",
    "by_module",
    "is_buffer",
    "read",
    "recognise",
    "unrecognised",
]

FORMATS: tuple[WeightFormat, ...] = (
    *dense.ROWS,
    *nvfp4.ROWS,
    *mxfp4.ROWS,
    *fp8.ROWS,
    *integers.ROWS,
    *awq.ROWS,
    *gptq.ROWS,
    *bitsandbytes.ROWS,
    *gguf.ROWS,
)

BY_NAME = {row.name: row for row in FORMATS}

_CODES = {name for row in FORMATS for name in (row.codes.name, *row.codes.also)}
_NAMES = {name for row in FORMATS for part in row.parameters for name in (part.name, *part.also)}
# Words of other things too: parameters only where the module has codes beside them.
_COMMON = {"bias", "scale", "scales", "blocks"}
# A house form without one can be nothing else; with one only the config can mean it.
_GLOBALS = {part.name for row in FORMATS if row.house for part in row.parameters if part.optional}
_LONGEST_FIRST = sorted(_NAMES | _COMMON, key=len, reverse=True)


def by_module(tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
    """The tensors by module and parameter.

    The parameter is what follows the module's name and a dot ("weight_scale"), or an underscore in
    stacks of experts ("experts.gate_up_proj" of "experts.gate_up_proj_blocks"). A tensor that is
    no parameter of any format is a module of its own, by its whole name, with the parameter
    "weight".
    """
    modules: dict[str, dict[str, TensorInfo]] = {}
    for name, info in tensors.items():
        module, parameter = _split(name, tensors)
        modules.setdefault(module, {})[parameter] = info
    return modules


def recognise(
    tensors: Parameters, scheme: Scheme | None = None, container: str = "safetensors"
) -> WeightFormat | None:
    """The row that a module's tensors are in; None where none has such codes.

    tensors: by parameter, as by_module has them. container: "gguf" for tensors of a GGUF file. A
    row that fits without fault wins over those that the scheme promises, so that a config which
    contradicts its tensors shows; else a promised one, else the nearest, whose faults read() then
    tells.
    """
    if is_buffer(tensors):
        return BY_NAME["dense"]
    if scheme is None:
        return _recognise(signature(tensors), (), None, container)
    return _recognise(signature(tensors), (scheme.format, *scheme.also), scheme.group, container)


def unrecognised(module: str, tensors: Parameters) -> Fault:
    """The fault of a module that recognise() has no row for."""
    first = next(iter(tensors.values()))
    held = ", ".join(f"{name} {info.dtype}" for name, info in sorted(tensors.items()))
    if _CODES.isdisjoint(tensors):
        message = f"the weight that it belongs to is missing: {module} holds {held} alone"
        return Fault("scale-layout", message, first.file, first.name, "a weight beside it", "none")
    message = f"no weight format is known that holds {held}"
    return Fault("scale-layout", message, first.file, module, "a format of docs/formats.md", held)


@lru_cache(maxsize=1 << 12)
def _recognise(
    seen: Signature, promised: tuple[str, ...], group: tuple[int, int] | None, container: str
) -> WeightFormat | None:
    held = {name: dtype for name, dtype, _ in seen}
    house = any(name in BY_NAME and BY_NAME[name].house for name in promised)
    distances = {
        row: match(row, seen, group).distance
        for row in FORMATS
        if row.container == container
        and (house or not row.house or held.keys().isdisjoint(_GLOBALS))
        and any(held.get(name) in row.codes.dtypes for name in (row.codes.name, *row.codes.also))
    }

    def order(row: WeightFormat) -> tuple[bool, int, tuple[int, int]]:
        misfits = distances[row] > (0, 0)
        place = promised.index(row.name) if row.name in promised else len(promised)
        return misfits, place == len(promised) if misfits else place, distances[row]

    return min(distances, key=order, default=None)  # the first of equals


def _split(name: str, names: Collection[str]) -> tuple[str, str]:
    stem, dot, tail = name.rpartition(".weight.")
    if dot and f"weight.{tail}" in _NAMES:
        return stem, f"weight.{tail}"
    stem, _, last = name.rpartition(".")
    if last in _NAMES - _COMMON:
        return stem, last
    if last in _COMMON and any(f"{stem}.{codes}" in names for codes in _CODES):
        return stem, last
    for parameter in _LONGEST_FIRST:
        if last.endswith(f"_{parameter}"):
            stem = name[: -len(parameter) - 1]
            if stem in names or any(f"{stem}_{codes}" in names for codes in _CODES):
                return stem, parameter
    return name, "weight"
