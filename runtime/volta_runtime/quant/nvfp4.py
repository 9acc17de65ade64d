"""NVFP4: E2M1 codes in groups of 16 along K, an E4M3 scale per group, one FP32 scale per tensor.

On disk (compressed-tensors `nvfp4-pack-quantized`): W = e2m1 * f32(scale) / global_scale with
global_scale = 448 * 6 / amax(W), so that the largest group's scale is the largest E4M3 number.
Both roundings are to the nearest, ties to the even code; scales saturate at 448.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROUP = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

# Values by code; the sign is bit 3 of E2M1 and bit 7 of E4M3. E4M3 code 0x7f is NaN.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array(
    [
        (m / 8 * 2.0**-6) if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        for e in range(16)
        for m in range(8)
    ][:127],
    np.float32,
)

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


def dequantize(array: NVFP4Array) -> F32:
    """The [N, K] matrix that the codes stand for, in FP32."""
    n, half_k = array.packed.shape
    codes = np.stack([array.packed & 15, array.packed >> 4], axis=-1).reshape(n, half_k * 2)
    values = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    scale = np.repeat(E4M3[array.scale], GROUP, axis=1) / np.float32(array.global_scale)
    result: F32 = values * scale
    return result


def _global_scale(amax: float) -> float:
    """448 * 6 / amax in FP32, kept finite for matrices of zeros or of denormals."""
    if amax == 0:
        return 1.0
    return float(np.float32(min(E4M3_MAX * E2M1_MAX / amax, float(np.finfo(np.float32).max))))


def _quantize_rows(weight: F32, global_scale: float) -> tuple[U8, U8]:
    groups = weight.reshape(len(weight), -1, GROUP) * np.float32(global_scale)
    magnitudes: F32 = np.abs(groups)
    scale = _nearest(E4M3, magnitudes.max(axis=2) / np.float32(E2M1_MAX))
    # A group below the least scale is zero whatever its codes; dividing by infinity makes them 0.
    divisor: F32 = np.where(scale == 0, np.float32(np.inf), E4M3[scale])
    codes = _nearest(E2M1, magnitudes / divisor[..., None])
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
