"""What must agree within a checkpoint: configs, names, shapes, and modules with their like.

One file for each thing that is held against another; a function in it takes what was read and tells
the faults.
"""

from collections.abc import Iterator, Mapping

from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.consistency.configs import two_configs
from volta_runtime.checkpoint.consistency.head import head
from volta_runtime.checkpoint.consistency.joined import joined
from volta_runtime.checkpoint.consistency.layers import layers
from volta_runtime.checkpoint.consistency.roots import roots
from volta_runtime.checkpoint.consistency.schemes import directions, schemes
from volta_runtime.checkpoint.consistency.sizes import sizes
from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization import Quantization


def disagreements(
    contents: Contents,
    quantization: Quantization,
    architecture: Architecture,
    modules: Mapping[str, Module],
) -> Iterator[Fault]:
    """All that does not agree, the configs' first."""
    if not modules:
        return
    yield from two_configs(quantization, modules)
    if contents.kind != "gguf":  # whose tensors are their own config
        against = list(schemes(contents, quantization, modules))
        yield from against
        yield from directions(quantization, modules)
        yield from joined(modules, {fault.tensor for fault in against})
        yield from head(contents, modules)
        yield from sizes(contents, architecture, modules)
    yield from layers(contents, architecture, modules)
    yield from roots(contents, modules)
