"""The class of a module, which targets of a config may name."""

from collections.abc import Mapping

from volta_runtime.checkpoint.formats import is_buffer
from volta_runtime.checkpoint.tensors import TensorInfo

_ROUTERS = ("gate", "router", "shared_expert_gate")


def class_of(name: str, tensors: Mapping[str, TensorInfo]) -> str:
    """Linear, Experts, Router, Conv, Embedding, Norm or Buffer, by name and rank.

    Headers know no classes.

    tensors: by parameter. A router is of its own class in most models, so that "Linear" does not
    mean it; where it is packed, it is a linear layer.
    """
    if is_buffer(tensors):
        return "Buffer"
    last = name.rpartition(".")[2]
    rank = max(len(info.shape) for info in tensors.values())
    plain = tensors.keys() <= {"weight", "bias"}
    if plain and rank < 2:
        return "Norm"
    if "embed" in last:
        return "Embedding"
    if plain and last in _ROUTERS:
        return "Router"
    if plain and ("conv" in last or rank > 3):
        return "Conv"
    return "Experts" if name.split(".")[-2:-1] == ["experts"] else "Linear"
