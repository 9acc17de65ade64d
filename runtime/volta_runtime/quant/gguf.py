"""GGUF's types: rows of blocks, each with its codes and its scales; those of grids by the library.

A block is a C struct of ggml, so here a structured dtype of the fields that the type's row has.
Within a block, codes of 4 bits lie as two halves (the low nibbles are the first), not in pairs.
"""

import re
from collections.abc import Callable

import numpy as np

from volta_runtime.checkpoint.formats.gguf import ROWS
from volta_runtime.quant.floats import E2M1, E4M3, E8M0, floats
from volta_runtime.quant.stored import F32, Array, Stored

_BY_TYPE = {row.codes.dtypes[0]: row for row in ROWS}


def dequantize(w: Stored, dtype: str) -> F32:
    """[.., N, K] of rows of blocks, [.., N, bytes of a row].

    `scale` multiplies where there is one: [1] of a matrix, [experts] of a stack of them.
    """
    rows = np.ascontiguousarray(w["weight"])
    if dtype in DECODERS:
        blocks = rows.reshape(-1).view(layout(dtype))
        values: F32 = DECODERS[dtype](blocks).reshape(*rows.shape[:-1], -1)
    else:
        import gguf

        kind = gguf.GGMLQuantizationType[dtype]
        values = gguf.quants.dequantize(rows, kind).astype(np.float32, copy=False)
    if "scale" not in w:
        return values
    return values * floats(w["scale"]).reshape(-1, *(1,) * (values.ndim - 1))


def layout(dtype: str) -> np.dtype[np.void]:
    """The block of a type, as its row tells it."""
    fields = re.findall(r"(\w+) ([fiu])(\d+)(?:\[(\d+)\])?", _BY_TYPE[dtype].block)
    return np.dtype(
        [
            (name, f"<{kind}{int(bits) // 8}", (int(count),) if count else ())
            for name, kind, bits, count in fields
        ]
    )


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
    # UE4M3: the sign bit is not used, and what is NaN in E4M3 is 0.
    return _grouped(E2M1[_halves(block["qs"], 8)], np.nan_to_num(E4M3[block["d"] & 127]))


def _ones(block: Array) -> Array:
    bits: Array = np.unpackbits(block["qs"], axis=1, bitorder="little").astype(np.int8)
    return bits


# By type: the values of its blocks in FP32, [blocks, weights].
DECODERS: dict[str, Callable[[Array], F32]] = {
    "Q1_0": lambda b: _column(b["d"]) * (2 * _ones(b) - 1),
    "Q4_0": lambda b: _column(b["d"]) * (_halves(b["qs"], 16).astype(np.int8) - 8),
    "Q4_1": lambda b: _column(b["d"]) * _halves(b["qs"], 16) + _column(b["m"]),
    "Q5_0": lambda b: _column(b["d"]) * (_fifth(b).astype(np.int8) - 16),
    "Q5_1": lambda b: _column(b["d"]) * _fifth(b) + _column(b["m"]),
    "Q8_0": lambda b: _column(b["d"]) * b["qs"].astype(np.float32),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": lambda b: _with_minimum(b, _halves(b["qs"], 32)),
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
