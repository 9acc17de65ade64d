"""MXFP4: E2M1 codes, an E8M0 scale for 32 weights along K."""

from volta_runtime.quant.floats import E2M1, E8M0, nibbles, spread
from volta_runtime.quant.stored import F32, Stored


def dequantize(w: Stored) -> F32:
    """compressed-tensors: codes [.., N, K/2], scales [.., N, K/32]."""
    values = E2M1[nibbles(w["weight_packed"])]
    return values * spread(E8M0[w["weight_scale"]], values.shape[-1])


def dequantize_blocks(w: Stored) -> F32:
    """gpt-oss: codes [.., N, K/32, 16], scales [.., N, K/32]."""
    values: F32 = E2M1[nibbles(w["blocks"])] * E8M0[w["scales"]][..., None]
    return values.reshape(*values.shape[:-2], -1)
