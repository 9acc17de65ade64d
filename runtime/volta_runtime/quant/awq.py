"""AWQ: eight 4-bit codes of neighbouring output features in a 32-bit word, out of order."""

import numpy as np

from volta_runtime.quant.floats import fields, floats
from volta_runtime.quant.stored import F32, Array, Stored

# Where in the word's nibbles, counted from the lowest, each of its eight columns is.
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])


def dequantize(w: Stored) -> F32:
    """[N, K] of qweight [K, N/8], qzeros [K/G, N/8] and scales [K/G, N]."""
    codes, zeros = _unpack(w["qweight"]), _unpack(w["qzeros"])
    scales = floats(w["scales"])
    size = codes.shape[-2] // scales.shape[-2]
    steps = codes - np.repeat(zeros, size, axis=-2)
    return np.swapaxes(steps.astype(np.float32) * np.repeat(scales, size, axis=-2), -1, -2)


def _unpack(words: Array) -> Array:
    codes = fields(words, 4)
    return codes.reshape(*codes.shape[:-1], -1, 8)[..., _PLACES].reshape(codes.shape)
