"""What the scales of a checkpoint hold: the only tensors whose values a preflight reads."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleValues:
    """What was seen in one scale tensor.

    read, count: elements that were read, and that there are. low, high: the least and the greatest
    finite value among those read. nans (infinities too), zeros, negatives, subnormals: how many;
    a subnormal is one of the tensor's own dtype. value: of a scalar, its value.
    """

    read: int
    count: int
    low: float | None
    high: float | None
    nans: int = 0
    zeros: int = 0
    negatives: int = 0
    subnormals: int = 0
    value: float | None = None


@dataclass(frozen=True)
class Scales:
    """The scale tensors by name, with the bytes that were read and that they have in all."""

    values: Mapping[str, ScaleValues]
    bytes_read: int
    bytes_in_all: int
