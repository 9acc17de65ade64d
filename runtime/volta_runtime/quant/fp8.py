"""FP8 E4M3 with a scale for the tensor, for each row or for each block."""

from volta_runtime.quant.floats import E4M3, E8M0, blocks, floats
from volta_runtime.quant.stored import F32, Stored


def dequantize(w: Stored) -> F32:
    """The weight times its scale, which multiplies under the name weight_scale_inv too."""
    values = E4M3[w["weight"]]
    stored = w["weight_scale_inv"] if "weight_scale_inv" in w else w["weight_scale"]
    scale = E8M0[stored] if stored.dtype == "uint8" else floats(stored)
    *experts, n, k = values.shape
    if scale.size == 1:
        return values * scale.reshape(())
    if scale.size == values[..., 0].size:  # a row each
        return values * scale.reshape(*experts, n, 1)
    if scale.size == values[..., 0, 0].size:  # an expert each
        return values * scale.reshape(*experts, 1, 1)
    return values * blocks(scale, n, k, w.block)
