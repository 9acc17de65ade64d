"""Weight formats: one row each, recognised by tensor names and dtypes, never by magnitudes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.safetensors import TensorInfo

Parameters = Mapping[str, TensorInfo]  # a module's tensors by their last name component
Shape = tuple[int, ...]


@dataclass(frozen=True)
class WeightFormat:
    """How a module stores its weight.

    dtypes: the parameters that make up the weight and the dtypes each may have; a module is in
        this format when it has exactly these, plus an optional bias.
    logical: the weight's logical shape by the stored shape of the first parameter.
    shapes: the parameters' shapes by the weight's logical shape.
    scheme: the `weights` entry of a compressed-tensors config group that announces the format;
        None for the format of modules that no group covers.
    """

    name: str
    dtypes: Mapping[str, frozenset[str]]
    logical: Callable[[Shape], Shape]
    shapes: Callable[[Shape], Mapping[str, Shape]]
    scheme: Mapping[str, Any] | None = None

    def matches(self, parameters: Parameters) -> bool:
        """Whether these parameters are stored in this format."""
        return parameters.keys() - {"bias"} == self.dtypes.keys() and all(
            parameters[name].dtype in dtypes for name, dtypes in self.dtypes.items()
        )

    def check_shapes(self, parameters: Parameters) -> None:
        """Raise CheckpointError naming the tensor whose shape does not fit the others."""
        first = parameters[next(iter(self.dtypes))]
        for name, expected in self.shapes(self.logical(first.shape)).items():
            info = parameters[name]
            if info.shape != expected:
                raise CheckpointError(
                    f"{info.file}: tensor {info.name} has shape {list(info.shape)}, expected"
                    f" {list(expected)} beside {first.name} {list(first.shape)} ({self.name})"
                )


_FLOATS = frozenset({"F16", "BF16", "F32"})


def _nvfp4_logical(packed: Shape) -> Shape:
    """[N, K] of [N, K/2] bytes, in whole groups of 16 weights, which are 8 bytes."""
    n, half_k = packed if len(packed) == 2 else (0, 0)
    return n, half_k // 8 * 16


def _nvfp4_shapes(logical: Shape) -> dict[str, Shape]:
    """Of a weight [N, K]; a scale covers 16 weights along K."""
    n, k = logical
    return {
        "weight_packed": (n, k // 2),
        "weight_scale": (n, k // 16),
        "weight_global_scale": (1,),
    }


FORMATS = (
    WeightFormat(
        "dense", {"weight": _FLOATS}, lambda stored: stored, lambda shape: {"weight": shape}
    ),
    # compressed-tensors nvfp4-pack-quantized, weights only: W = e2m1 * scale / global_scale.
    WeightFormat(
        "nvfp4",
        {
            "weight_packed": frozenset({"U8"}),
            "weight_scale": frozenset({"F8_E4M3"}),
            "weight_global_scale": frozenset({"F32"}),
        },
        _nvfp4_logical,
        _nvfp4_shapes,
        scheme={"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
)

BY_NAME = {row.name: row for row in FORMATS}


def recognise(module: str, parameters: Parameters) -> WeightFormat:
    """The row whose names and dtypes the module's tensors have.

    Raises CheckpointError naming the module and its tensors when there is none.
    """
    for row in FORMATS:
        if row.matches(parameters):
            row.check_shapes(parameters)
            return row
    found = ", ".join(f"{name} {info.dtype}" for name, info in sorted(parameters.items()))
    known = "; ".join(
        f"{row.name} ("
        + ", ".join(f"{name} {'/'.join(sorted(types))}" for name, types in row.dtypes.items())
        + ")"
        for row in FORMATS
    )
    file = next(iter(parameters.values())).file
    raise CheckpointError(
        f"{file}: module {module} holds {found}, which is no format this version supports;"
        f" supported: {known}"
    )
