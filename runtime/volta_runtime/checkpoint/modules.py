"""The modules of a checkpoint: for each the format of its tensors and what its config promised."""

import re
from collections.abc import Mapping
from dataclasses import replace

from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.consistency import disagreements
from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.formats import by_module, read, recognise, unrecognised
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quant_state import logical
from volta_runtime.checkpoint.quantization import Quantization
from volta_runtime.checkpoint.quantization.classes import class_of
from volta_runtime.checkpoint.quantization.names import like
from volta_runtime.checkpoint.tensors import TensorInfo

_PART_OF_TABLE = re.compile(r"(.+)\.shard_\d+")


def module_map(
    contents: Contents, quantization: Quantization, architecture: Architecture
) -> tuple[dict[str, Module], tuple[Fault, ...]]:
    """The modules by name, and what is wrong with them and between them.

    Without tensors (an index alone, pickled weights) there are neither.
    """
    container = "gguf" if contents.kind == "gguf" else "safetensors"
    modules: dict[str, Module] = {}
    faults: list[Fault] = []
    for name, tensors in _with_tables(by_module(contents.tensors)).items():
        scheme = quantization.scheme_of(name, class_of(name, tensors))
        row = recognise(tensors, scheme, container)
        if row is None:
            faults.append(unrecognised(name, tensors))
            modules[name] = Module(name, None, (), None, tensors, scheme)
            continue
        reading = read(row, tensors, scheme)
        faults += reading.faults
        shape = logical(row, tensors, reading.shape or ())
        modules[name] = Module(name, row, shape, reading.group, tensors, scheme)
    modules = _without_blanket(modules)
    faults += disagreements(contents, quantization, architecture, modules)
    return modules, (*faults, *quantization.pattern_faults())


def _with_tables(
    modules: Mapping[str, dict[str, TensorInfo]],
) -> dict[str, dict[str, TensorInfo]]:
    """Give the parts of a table (shard_0, shard_1, ...) the scale that the whole of it has."""
    found = {name: dict(tensors) for name, tensors in modules.items()}
    wholes = set()
    for name in modules:
        match = _PART_OF_TABLE.fullmatch(name)
        if match and match[1] in modules and "weight" not in modules[match[1]]:
            found[name] |= modules[match[1]]
            wholes.add(match[1])
    return {name: tensors for name, tensors in found.items() if name not in wholes}


def _without_blanket(modules: Mapping[str, Module]) -> dict[str, Module]:
    """Take a promise that names no module from kinds of which none is quantised.

    Heads, routers and the like are left dense by methods that do not list them. Where nothing is
    quantised at all, the layers keep the promise, which nothing then fulfils.
    """
    if not any(module.quantised for module in modules.values()):
        return {
            name: module
            if module.scheme is None or not module.scheme.blanket or like(name) != name
            else replace(module, scheme=None)
            for name, module in modules.items()
        }
    quantised = {like(name) for name, module in modules.items() if module.quantised}
    return {
        name: module
        if module.scheme is None or not module.scheme.blanket or like(name) in quantised
        else replace(module, scheme=None)
        for name, module in modules.items()
    }
