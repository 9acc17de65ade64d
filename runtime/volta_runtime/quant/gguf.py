"""GGUF's types, decoded by the library of that name."""

import numpy as np

from volta_runtime.quant.floats import floats
from volta_runtime.quant.stored import F32, Stored


def dequantize(w: Stored, dtype: str) -> F32:
    """[.., K] of rows of blocks, [.., bytes of a row]; `scale` multiplies where there is one."""
    import gguf

    kind = gguf.GGMLQuantizationType[dtype]
    values: F32 = gguf.quants.dequantize(w["weight"], kind).astype(np.float32, copy=False)
    return values * floats(w["scale"]).reshape(()) if "scale" in w else values
