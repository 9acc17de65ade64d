"""GGUF's types: rows of blocks, each with its codes and its scales; those of grids by the library.

The layouts are ggml's (ggml-common.h): a block is a C struct, so here a structured dtype. Within a
block, codes of 4 bits lie as two halves (the low nibbles are the first), not in pairs.
"""

from collections.abc import Callable

import numpy as np

from volta_runtime.quant.floats import E2M1, E4M3, E8M0, floats
from volta_runtime.quant.stored import F32, Array, Stored


def dequantize(w: Stored, dtype: str) -> F32:
    """[.., K] of rows of blocks, [.., bytes of a row]; `scale` multiplies where there is one."""
    rows = np.ascontiguousarray(w["weight"])
    if dtype in _BLOCKS:
        layout, decode = _BLOCKS[dtype]
        blocks = rows.reshape(-1).view(np.dtype(layout))
        values: F32 = decode(blocks).reshape(*rows.shape[:-1], -1)
    else:
        import gguf

        kind = gguf.GGMLQuantizationType[dtype]
        values = gguf.quants.dequantize(rows, kind).astype(np.float32, copy=False)
    return values * floats(w["scale"]).reshape(()) if "scale" in w else values


def _column(array: Array) -> F32:
    """[blocks, 1] of one FP16 number for each block."""
    return array.astype(np.float32)[:, None]


def _halves(bytes_: Array, length: int) -> Array:
    """[.., 2n] codes of [.., n] bytes: of each `length` bytes the low nibbles, then the high."""
    runs = bytes_.reshape(len(bytes_), -1, length)
    return np.stack([runs & 15, runs >> 4], axis=2).reshape(len(bytes_), -1)


def _layers(bytes_: Array, length: int, bits: int) -> Array:
    """[.., n * 8 / bits] codes: of each `length` bytes the lowest bits of all, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = bytes_.reshape(len(bytes_), -1, 1, length)
    return ((runs >> shifts) & ((1 << bits) - 1)).reshape(len(bytes_), -1)


def _grouped(codes: Array, scale: F32) -> F32:
    """[blocks, codes] times one scale for each group of them, [blocks, groups]."""
    grouped = codes.reshape(*scale.shape, -1).astype(np.float32)
    values: F32 = scale[..., None] * grouped
    return values.reshape(len(codes), -1)


def _fifth(block: Array) -> Array:
    """Codes of 5 bits: the highest of each is a bit of `qh`."""
    bits = np.unpackbits(block["qh"], axis=1, bitorder="little")
    codes: Array = _halves(block["qs"], 16) | bits << 4
    return codes


def _six_bits(packed: Array) -> tuple[F32, F32]:
    """Eight scales and eight minima of 6 bits, [blocks, 8] each, of [blocks, 12] bytes.

    The first four of both lie in the low 6 bits of 4 bytes each; of the others the last 4 bytes
    hold the low 4 bits, and the top 2 bits of the first eight bytes hold their highest.
    """
    low, middle, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 63, (rest & 15) | (low >> 6) << 4], axis=1)
    least = np.concatenate([middle & 63, (rest >> 4) | (middle >> 6) << 4], axis=1)
    return scale.astype(np.float32), least.astype(np.float32)


def _with_minimum(block: Array, codes: Array) -> F32:
    scale, least = _six_bits(block["scales"])
    offsets = np.repeat(_column(block["dmin"]) * least, 32, axis=1)
    return _grouped(codes, _column(block["d"]) * scale) - offsets


def _q2_k(block: Array) -> F32:
    packed = block["scales"]
    scale, least = (part.astype(np.float32) for part in (packed & 15, packed >> 4))
    offsets = np.repeat(_column(block["dmin"]) * least, 16, axis=1)
    return _grouped(_layers(block["qs"], 32, 2), _column(block["d"]) * scale) - offsets


def _q3_k(block: Array) -> F32:
    packed = block["scales"]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = _layers(packed[:, 8:], 4, 2)
    scale = (low | high << 4).astype(np.float32) - 32
    # A bit of hmask that is set takes nothing off; without it the code is 4 less.
    codes = _layers(block["qs"], 32, 2) | _layers(block["hmask"], 32, 1) << 2
    return _grouped(codes.astype(np.int8) - 4, _column(block["d"]) * scale)


def _q5_k(block: Array) -> F32:
    return _with_minimum(block, _halves(block["qs"], 32) | _layers(block["qh"], 32, 1) << 4)


def _q6_k(block: Array) -> F32:
    codes = _halves(block["ql"], 64) | _layers(block["qh"], 32, 2) << 4
    scale = _column(block["d"]) * block["scales"].astype(np.float32)
    return _grouped(codes.astype(np.int8) - 32, scale)


def _mxfp4(block: Array) -> F32:
    values: F32 = E2M1[_halves(block["qs"], 16)] * E8M0[block["e"]][:, None]
    return values


def _nvfp4(block: Array) -> F32:
    # The scale's sign bit is not used: UE4M3.
    return _grouped(E2M1[_halves(block["qs"], 8)], E4M3[block["d"] & 127])


_D, _M = ("d", "<f2"), ("m", "<f2")
_QS, _QH = ("qs", "u1", 16), ("qh", "u1", 4)
_K_SCALES = ("scales", "u1", 12)
_DMIN = ("dmin", "<f2")

# By type: the fields of a block, and its values in FP32, [blocks, weights].
_BLOCKS: dict[str, tuple[list[tuple[str, str] | tuple[str, str, int]], Callable[[Array], F32]]] = {
    "Q4_0": ([_D, _QS], lambda b: _column(b["d"]) * (_halves(b["qs"], 16).astype(np.int8) - 8)),
    "Q4_1": ([_D, _M, _QS], lambda b: _column(b["d"]) * _halves(b["qs"], 16) + _column(b["m"])),
    "Q5_0": ([_D, _QH, _QS], lambda b: _column(b["d"]) * (_fifth(b).astype(np.int8) - 16)),
    "Q5_1": ([_D, _M, _QH, _QS], lambda b: _column(b["d"]) * _fifth(b) + _column(b["m"])),
    "Q8_0": ([_D, ("qs", "i1", 32)], lambda b: _column(b["d"]) * b["qs"].astype(np.float32)),
    "Q2_K": ([("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN], _q2_k),
    "Q3_K": ([("hmask", "u1", 32), ("qs", "u1", 64), _K_SCALES, _D], _q3_k),
    "Q4_K": (
        [_D, _DMIN, _K_SCALES, ("qs", "u1", 128)],
        lambda b: _with_minimum(b, _halves(b["qs"], 32)),
    ),
    "Q5_K": ([_D, _DMIN, _K_SCALES, ("qh", "u1", 32), ("qs", "u1", 128)], _q5_k),
    "Q6_K": ([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D], _q6_k),
    "MXFP4": ([("e", "u1"), _QS], _mxfp4),
    "NVFP4": ([("d", "u1", 4), ("qs", "u1", 32)], _nvfp4),
}
