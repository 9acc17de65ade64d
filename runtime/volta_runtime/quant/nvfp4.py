"""NVFP4: E2M1 codes in groups of 16 along K, an E4M3 scale per group, one FP32 scale per tensor.

On disk (compressed-tensors `nvfp4-pack-quantized`): W = e2m1 * f32(scale) / global_scale with
global_scale = 448 * 6 / amax(W), so that the largest group's scale is the largest E4M3 number.
Both roundings are to the nearest, ties to the even code; scales saturate at 448.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from volta_runtime.quant.floats import E2M1, E4M3, blocks, floats, nibbles, spread
from volta_runtime.quant.stored import F32, Array, Stored

GROUP = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0

U8 = npt.NDArray[np.uint8]

# Magnitudes by code, without E4M3's NaN.
MAGNITUDES = E2M1[:8]
SCALES = E4M3[:127]

# Elements quantised at a time: bounds the scratch memory to some tens of MiB.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class NVFP4Array:
    """A quantised [N, K] matrix in its on-disk form."""

    packed: U8  # [N, K/2], low nibble = even k
    scale: U8  # [N, K/16], E4M3 bytes
    global_scale: float  # FP32; a divisor


def quantize(weight: F32) -> NVFP4Array:
    """Quantise a [N, K] matrix, K a multiple of 16.

    Raises ValueError when K does not fit or a weight is not finite.
    """
    n, k = weight.shape
    if k % GROUP:
        raise ValueError(f"K = {k} is not a multiple of the group size {GROUP}")
    amax = np.abs(weight).max(initial=0)
    if not np.isfinite(amax):
        raise ValueError("a weight is infinite or NaN")
    global_scale = _global_scale(float(amax))
    packed = np.empty((n, k // 2), np.uint8)
    scale = np.empty((n, k // GROUP), np.uint8)
    step = max(1, _BLOCK // k)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        packed[rows], scale[rows] = _quantize_rows(weight[rows], global_scale)
    return NVFP4Array(packed, scale, global_scale)


def dequantize(w: Stored) -> F32:
    """compressed-tensors: weight_packed and weight_scale, divided by weight_global_scale."""
    values = E2M1[nibbles(w["weight_packed"])]
    scale = E4M3[w["weight_scale"]] / _each(w["weight_global_scale"])
    return values * spread(scale, values.shape[-1])


def dequantize_modelopt(w: Stored) -> F32:
    """ModelOpt and TensorRT-LLM: weight and weight_scale, times weight_scale_2.

    With pre_quant_scale, by which the layer multiplies its inputs, the matrix for the inputs as
    they come: its columns are multiplied instead.
    """
    values = E2M1[nibbles(w["weight"])]
    scale = E4M3[w["weight_scale"]] * _each(w["weight_scale_2"])
    weight = values * spread(scale, values.shape[-1])
    if "pre_quant_scale" in w:
        weight *= floats(w["pre_quant_scale"])[..., None, :]
    return weight


def dequantize_plain(w: Stored) -> F32:
    """The house form: weight and a plain scale for each group along K [, times weight_scale_2]."""
    values = E2M1[nibbles(w["weight"])]
    return values * spread(_house_scale(w), values.shape[-1])


def dequantize_block(w: Stored) -> F32:
    """The house form with a plain scale for each block."""
    values = E2M1[nibbles(w["weight"])]
    *_, n, k = values.shape
    return values * blocks(_house_scale(w), n, k, w.block)


def _house_scale(w: Stored) -> F32:
    """Raises ValueError for a global scale whose direction nothing tells."""
    if "weight_global_scale" in w:
        raise ValueError("no rule says whether weight_global_scale divides or multiplies here")
    scale = floats(w["weight_scale"])
    return scale * _each(w["weight_scale_2"]) if "weight_scale_2" in w else scale


def _each(scale: Array) -> F32:
    """One number, or one for each expert, to go with [.., N, K/G]."""
    value = floats(scale)
    return value.reshape(()) if value.size == 1 else value.reshape(-1, 1, 1)


def _global_scale(amax: float) -> float:
    """448 * 6 / amax in FP32, kept finite for matrices of zeros or of denormals."""
    if amax == 0:
        return 1.0
    return float(np.float32(min(E4M3_MAX * E2M1_MAX / amax, float(np.finfo(np.float32).max))))


def _quantize_rows(weight: F32, global_scale: float) -> tuple[U8, U8]:
    groups = weight.reshape(len(weight), -1, GROUP) * np.float32(global_scale)
    magnitudes: F32 = np.abs(groups)
    scale = _nearest(SCALES, magnitudes.max(axis=2) / np.float32(E2M1_MAX))
    # A group below the least scale is zero whatever its codes; dividing by infinity makes them 0.
    divisor: F32 = np.where(scale == 0, np.float32(np.inf), SCALES[scale])
    codes = _nearest(MAGNITUDES, magnitudes / divisor[..., None])
    codes |= np.left_shift(np.signbit(groups), 3, dtype=np.uint8)
    codes = codes.reshape(len(weight), -1)
    return codes[:, 0::2] | np.left_shift(codes[:, 1::2], 4), scale


def _nearest(values: F32, x: F32) -> U8:
    """Index of the value nearest to each x >= 0; ties to the even index, overflow to the last."""
    middles = (values[1:] + values[:-1]) / 2
    index = np.searchsorted(middles, x, side="left")
    tied = np.take(middles, index, mode="clip") == x
    index += tied & (index % 2 == 1)
    return index.astype(np.uint8)
