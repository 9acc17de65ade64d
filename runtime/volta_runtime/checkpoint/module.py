"""A module of a checkpoint: its tensors, the format they are in, and what its config promised."""

from collections.abc import Mapping
from dataclasses import dataclass

from volta_runtime.checkpoint.formats import WeightFormat
from volta_runtime.checkpoint.scheme import Scheme
from volta_runtime.checkpoint.tensors import TensorInfo


@dataclass(frozen=True)
class Module:
    """One module that has a weight.

    name: without the parameter ("model.layers.0.mlp.down_proj"); of experts that are stored as one
        tensor, the tensor's own name without its ending ("…mlp.experts.gate_up_proj").
    format: the row its tensors are in; None where no row fits, which is then a fault.
    shape: the weight's logical shape, [N, K] or [experts, N, K]; [N] for a norm or a bias, and the
        number of weights where bitsandbytes does not tell their shape.
    group: weights that share a scale (rows, columns), as the tensors' shapes show; None without.
    tensors: by parameter, the rest of the name ("weight_packed").
    scheme: what the config promised; None where it leaves the module unquantised.
    """

    name: str
    format: WeightFormat | None
    shape: tuple[int, ...]
    group: tuple[int, int] | None
    tensors: Mapping[str, TensorInfo]
    scheme: Scheme | None

    @property
    def quantised(self) -> bool:
        """Whether its weight is coded, in a format that is known."""
        return self.format is not None and self.format.name != "dense"

    @property
    def weight(self) -> TensorInfo:
        """The tensor with the weight itself; where no format is known, the first there is."""
        codes = self.format.codes.find(self.tensors) if self.format else None
        return codes or next(iter(self.tensors.values()))

    @property
    def bytes(self) -> int:
        """How many bytes its tensors take in their files."""
        return sum(info.bytes for info in self.tensors.values())
