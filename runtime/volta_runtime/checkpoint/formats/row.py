"""What the row of a weight format is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from volta_runtime.checkpoint.formats.shapes import Shape, Sizes, template
from volta_runtime.checkpoint.tensors import TensorInfo

FLOATS = ("F16", "BF16", "F32")  # what weights and plain scales are stored in

Parameters = Mapping[str, TensorInfo]  # a module's tensors by parameter ("weight_scale")

Role = Literal[
    "codes",  # the weight itself
    "scale",  # of a group, a row or the tensor
    "global",  # of the tensor, beside scales of groups
    "zero",  # zero points
    "order",  # which group a column is of
    "layout",  # the weight's shape or order, as data
    "columns",  # a factor for each input feature
    "table",  # what a code stands for
    "activation",  # of inputs: the weight does without
]


@dataclass(frozen=True)
class Parameter:
    """One tensor of a module.

    dtypes: those that it may have. shapes: those that it may have, in the words of shapes.py; any
    where empty. direction: what the formula does with it. check: the doctor's check that a fault of
    it breaks. also: other names that it goes by. held: bytes of an element in GPU memory, 0 where
    it is kept as it is stored.
    """

    name: str
    role: Role
    dtypes: tuple[str, ...]
    shapes: tuple[str, ...] = ()
    direction: Literal["multiply", "divide", "subtract", ""] = ""
    optional: bool = False
    check: str = "scale-layout"
    also: tuple[str, ...] = ()
    held: int = 0

    def find(self, tensors: Parameters) -> TensorInfo | None:
        """The module's tensor by that name, or by another that it goes by."""
        found = (tensors[name] for name in (self.name, *self.also) if name in tensors)
        return next(found, None)


@dataclass(frozen=True, eq=False)
class WeightFormat:
    """How a module stores its weight.

    parameters: its tensors, the codes first. A stack of experts has one more dimension in front.
    sizes: names of shapes that the format fixes ({"G": 16}); a config may declare others. group:
    weights that share a scale where no tensor tells (blocks of GGUF). block: the fields of such a
    block in their order, packed ("d f16, qs u8[16]"). bits: of a weight with its scales, as it lies
    in GPU memory, in the usual group. formula, source, note: for docs/formats.md.
    house: whether it is no public one, so that scales of a known one in a wrong type are not it.
    container: the files that it is found in. refused: why it is not dequantised, empty where it is.
    """

    name: str
    title: str
    parameters: tuple[Parameter, ...]
    bits: float
    formula: str
    source: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    group: tuple[int, int] | None = None
    block: str = ""
    container: Literal["safetensors", "gguf"] = "safetensors"
    refused: str = ""
    house: bool = False
    note: str = ""

    @property
    def codes(self) -> Parameter:
        """The parameter that holds the weight itself."""
        return self.parameters[0]

    def stored(self, shape: Shape) -> dict[str, Shape]:
        """The shapes of the tensors that must be there, for a weight of this shape.

        Without those whose shape follows from more than the weight's.
        """
        if not self.codes.shapes:
            return {self.codes.name: shape}
        sizes: Sizes = {**self.sizes, **dict(zip("NK", shape, strict=False))}
        stored: dict[str, Shape] = {}
        for parameter in self.parameters:
            parts = template(parameter.shapes[0]).shape(sizes)
            if not parameter.optional and None not in parts:
                stored[parameter.name] = tuple(part for part in parts if part is not None)
        return stored

    def device_bytes(self, tensors: Parameters) -> int:
        """Bytes that the weight takes in GPU memory, without the scales of activations."""
        total = 0
        for parameter in self.parameters:
            info = parameter.find(tensors)
            if info is not None and parameter.role != "activation":
                held = parameter.held * math.prod(info.shape)
                total += held or info.bytes
        return total
