"""The shape of a weight that bitsandbytes stored as one column: a blob of JSON beside it tells."""

import json
import math

from volta_runtime.checkpoint.files import opened
from volta_runtime.checkpoint.formats import WeightFormat
from volta_runtime.checkpoint.formats.row import Parameters

_BYTES = 4096  # the blob has some 120
_DIMENSIONS = 2


def logical(row: WeightFormat, tensors: Parameters, stored: tuple[int, ...]) -> tuple[int, ...]:
    """A weight's shape: the one that its format reads, of bitsandbytes' the one in its blob.

    Where no blob tells it, the number of weights: two to a byte, of whichever type the bytes are.
    Source: bitsandbytes functional.py (QuantState.as_dict).
    """
    if row.name != "bnb-nf4":
        return stored
    weights = 2 * tensors[row.codes.name].bytes
    blob = next((part.find(tensors) for part in row.parameters if part.role == "layout"), None)
    if blob is None or not 0 < blob.bytes <= _BYTES:
        return (weights,)
    try:
        with opened(blob.file) as (stream, _):
            stream.seek(blob.offsets[0])
            shape = json.loads(stream.read(blob.bytes))["shape"]
        sizes = tuple(size for size in shape if type(size) is int and size > 0)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return (weights,)
    told = len(sizes) == len(shape) == _DIMENSIONS and math.prod(sizes) in (weights, weights - 1)
    return sizes if told else (weights,)
