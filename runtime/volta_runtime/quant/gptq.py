"""GPTQ: codes of 2, 3, 4 or 8 bits packed along K, with zeros that lie one below what they mean."""

import numpy as np

from volta_runtime.quant.floats import fields, floats
from volta_runtime.quant.stored import F32, Array, Stored


def dequantize(w: Stored) -> F32:
    """[N, K] of qweight [K·b/32, N], qzeros [K/G, N·b/32], scales [K/G, N] and g_idx [K].

    Without g_idx groups follow each other.
    """
    scales, qzeros = floats(w["scales"]), w["qzeros"]
    bits = 32 * qzeros.shape[-1] // scales.shape[-1]
    codes = np.swapaxes(fields(np.swapaxes(w["qweight"], -1, -2), bits), -1, -2)
    zeros = fields(qzeros, bits) if w.gptq_v2 else _plus_one(qzeros, bits)
    k = codes.shape[-2]
    group = w["g_idx"] if "g_idx" in w else np.arange(k) // (k // scales.shape[-2])
    steps = codes - zeros[..., group, :]
    return np.swapaxes(steps.astype(np.float32) * scales[..., group, :], -1, -2)


def _plus_one(qzeros: Array, bits: int) -> Array:
    """The fields of v1's zeros, which were stored less one.

    The one is taken from whole words, so that a zero of 0 borrows from the field above: it is given
    back to whole words too. Words that fields of 3 bits run across have it in each field.
    """
    if 32 % bits:
        return (fields(qzeros, bits) + 1) & ((1 << bits) - 1)
    ones = sum(1 << shift for shift in range(0, 32, bits))
    return fields(qzeros.view(np.uint32) + np.uint32(ones), bits)
