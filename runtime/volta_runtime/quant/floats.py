"""Numbers of few bits, by code, and the dtypes that numpy lacks."""

import numpy as np
import numpy.typing as npt

from volta_runtime.quant.stored import F32, Array

# E2M1: the sign is bit 3.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _e4m3() -> F32:
    """E4M3 without infinities (e4m3fn): bias 7, the sign is bit 7, 0x7f and 0xff are NaN."""
    exponent, mantissa = np.arange(128) >> 3, np.arange(128) & 7
    fraction = np.where(exponent == 0, mantissa / 8, 1 + mantissa / 8)
    magnitude = np.ldexp(fraction, np.maximum(exponent, 1) - 7)
    magnitude[127] = np.nan
    return np.concatenate([magnitude, -magnitude]).astype(np.float32)


E4M3 = _e4m3()

# E8M0: 2^(code - 127), 0xff is NaN. Exact in FP32; below 2^-14 FP16 would lose bits.
E8M0 = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)


def floats(array: Array) -> F32:
    """FP32 of an FP16, FP32 or FP64 array, and of BF16 that is held as uint16."""
    if array.dtype == np.uint16:
        return np.left_shift(array, 16, dtype=np.uint32).view(np.float32)
    return array.astype(np.float32)


def nibbles(packed: Array) -> npt.NDArray[np.uint8]:
    """[.., 2n] codes of [.., n] bytes: the low nibble is the even one."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1)
    return codes.reshape(*packed.shape[:-1], -1).astype(np.uint8)


def fields(words: Array, bits: int) -> npt.NDArray[np.int32]:
    """[.., 32n / bits] codes of [.., n] 32-bit words, one after the other from the lowest bit."""
    stream = np.unpackbits(
        np.ascontiguousarray(words).astype("<u4").view(np.uint8), axis=-1, bitorder="little"
    )
    count = stream.shape[-1] // bits
    each = stream[..., : count * bits].reshape(*words.shape[:-1], count, bits)
    codes: npt.NDArray[np.int32] = each @ (1 << np.arange(bits, dtype=np.int32))
    return codes


def spread(scale: F32, k: int) -> F32:
    """[.., N, K] of one scale for each group along K, [.., N, K/G]."""
    return np.repeat(scale, k // scale.shape[-1], axis=-1)


def blocks(scale: F32, n: int, k: int, group: tuple[int, int]) -> F32:
    """[.., N, K] of one scale for each block of so many rows and columns, the last ones cut."""
    rows, columns = group
    return np.repeat(np.repeat(scale, rows, axis=-2), columns, axis=-1)[..., :n, :k]
