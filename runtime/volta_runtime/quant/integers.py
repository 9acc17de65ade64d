"""Whole numbers of compressed-tensors."""

import numpy as np

from volta_runtime.quant.floats import fields, floats, spread
from volta_runtime.quant.stored import F32, Array, Stored


def dequantize_packed(w: Stored, bits: int) -> F32:
    """Fields of 32-bit words, along K; zero points along N. weight_shape tells what is filling."""
    n, k = (int(size) for size in w["weight_shape"][-2:])
    half = 1 << (bits - 1)
    codes = fields(w["weight_packed"], bits)[..., :k] - half
    scale = floats(w["weight_scale"])
    if "weight_zero_point" in w:
        columns = np.swapaxes(w["weight_zero_point"], -1, -2)
        zero = np.swapaxes(fields(columns, bits)[..., :n] - half, -1, -2)
        codes = codes - _columns(zero, w, k)
    return codes.astype(np.float32) * _columns(scale, w, k)


def dequantize_bytes(w: Stored) -> F32:
    """A byte for each weight."""
    codes = w["weight"].astype(np.int32)
    k = codes.shape[-1]
    if "weight_zero_point" in w:
        codes = codes - _columns(w["weight_zero_point"].astype(np.int32), w, k)
    return codes.astype(np.float32) * _columns(floats(w["weight_scale"]), w, k)


def _columns(values: Array, w: Stored, k: int) -> Array:
    """One value for each weight, of those of groups."""
    if values.size == 1:
        return values.reshape(())
    if "weight_g_idx" in w:
        return values[..., w["weight_g_idx"]]
    return spread(values, k)
