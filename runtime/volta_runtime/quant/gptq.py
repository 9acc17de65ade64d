"""GPTQ: codes of 2, 3, 4 or 8 bits packed along K, with zeros that lie one below what they mean."""

import numpy as np

from volta_runtime.quant.floats import fields, floats
from volta_runtime.quant.stored import F32, Stored


def dequantize(w: Stored) -> F32:
    """[N, K] of qweight [K·b/32, N], qzeros [K/G, N·b/32], scales [K/G, N] and g_idx [K].

    Without g_idx groups follow each other.
    """
    scales, qzeros = floats(w["scales"]), w["qzeros"]
    bits = 32 * qzeros.shape[-1] // scales.shape[-1]
    codes = np.swapaxes(fields(np.swapaxes(w["qweight"], -1, -2), bits), -1, -2)
    # Stored + 1 wraps round in the field's own width.
    zeros = fields(qzeros, bits) if w.gptq_v2 else (fields(qzeros, bits) + 1) & ((1 << bits) - 1)
    k = codes.shape[-2]
    group = w["g_idx"] if "g_idx" in w else np.arange(k) // (k // scales.shape[-2])
    steps = codes - zeros[..., group, :]
    return np.swapaxes(steps.astype(np.float32) * scales[..., group, :], -1, -2)
