"""The types of GGUF: each tensor is blocks along K that hold codes and scales together."""

from volta_runtime.checkpoint.formats.row import Parameter, WeightFormat
from volta_runtime.checkpoint.gguf import TYPES

_SIZES = {name: (weights, size) for name, weights, size in TYPES.values()}
_NUMBER = ("[1]", "[]")
# llama.cpp multiplies the product with any weight by the number that stands beside it.
_BESIDE = (
    Parameter("scale", "global", ("F32",), _NUMBER, "multiply", optional=True),
    Parameter("input_scale", "activation", ("F32",), _NUMBER, optional=True),
)


def _row(dtype: str, block: str, formula: str, note: str = "") -> WeightFormat:
    """A type, with the fields of its block in their order; note: where in them each weight is."""
    weights, size = _SIZES[dtype]
    codes = Parameter("weight", "codes", (dtype,), ("[N, K]",) if block else ())
    return WeightFormat(
        name=f"gguf-{dtype.lower()}",
        title=f"{dtype} of GGUF",
        parameters=(codes, *_BESIDE) if block else (codes,),
        bits=size * 8 / weights,
        formula=formula,
        source=f"ggml ggml-common.h (block_{dtype.lower()}), ggml-quants.c; gguf quants.py"
        if block
        else "ggml ggml.h (ggml_type)",
        group=(1, weights) if block else None,
        container="gguf",
        block=block,
        note=note,
    )


_HALVES = "Weights j and j + 16 are the low and the high nibble of qs[j]."
_FIFTH = f"{_HALVES} The fifth bit of weight j is bit j of qh, a 32-bit word."
_QUARTERS = "Weight 128h + 32i + j is bits 2i and 2i + 1 of qs[32h + j]."
_LONG_HALVES = "Weights 64h + j and 64h + 32 + j are the low and the high nibble of qs[32h + j]."
_SIX_BITS = (
    "sc and m of the first four groups are the low 6 bits of scales[0..3] and scales[4..7]; of"
    " group 4 + i the low 4 bits of sc and m are the low and the high nibble of scales[8 + i], and"
    " the high 2 those of scales[i] and scales[4 + i]."
)
_TABLE = "The table: −127 −104 −83 −65 −49 −35 −22 −10 1 13 25 38 53 69 89 113."
_GRID = "The grid is a table of ggml, eight weights to an entry"
_GRID_OF_FOUR = "The grid is a table of ggml, four weights to an entry"
_SIGNS = "signs of eight weights are 7 bits, the eighth makes their number even"

ROWS = (
    _row("F32", "", "W = weight"),
    _row("F16", "", "W = weight"),
    _row("BF16", "", "W = weight"),
    _row("I32", "", "W = weight", "Tables that some models carry, no weights of layers."),
    _row("Q1_0", "d f16, qs u8[16]", "W = d · (2q − 1)", "Weight j is bit j mod 8 of qs[⌊j/8⌋]."),
    _row("Q4_0", "d f16, qs u8[16]", "W = d · (q − 8)", _HALVES),
    _row("Q4_1", "d f16, m f16, qs u8[16]", "W = d · q + m", _HALVES),
    _row("Q5_0", "d f16, qh u8[4], qs u8[16]", "W = d · (q − 16)", _FIFTH),
    _row("Q5_1", "d f16, m f16, qh u8[4], qs u8[16]", "W = d · q + m", _FIFTH),
    _row("Q8_0", "d f16, qs i8[32]", "W = d · q", "Weight j is qs[j]."),
    _row(
        "Q2_K",
        "scales u8[16], qs u8[64], d f16, dmin f16",
        "W = d · sc · q − dmin · m, sc and m 4 bits for 16 weights",
        f"{_QUARTERS} sc and m of group s are the low and the high nibble of scales[s].",
    ),
    _row(
        "Q3_K",
        "hmask u8[32], qs u8[64], scales u8[12], d f16",
        "W = d · (sc − 32) · (q − 4), sc 6 bits for 16 weights",
        f"{_QUARTERS} Its third bit is bit 4h + i of hmask[j]. Of group s the low 4 bits of sc are"
        " the low nibble of scales[s], from the ninth on the high one of scales[s − 8]; its high 2"
        " are bits 2⌊s/4⌋ and 2⌊s/4⌋ + 1 of scales[8 + s mod 4].",
    ),
    _row(
        "Q4_K",
        "d f16, dmin f16, scales u8[12], qs u8[128]",
        "W = d · sc · q − dmin · m, sc and m 6 bits for 32 weights",
        f"{_LONG_HALVES} {_SIX_BITS}",
    ),
    _row(
        "Q5_K",
        "d f16, dmin f16, scales u8[12], qh u8[32], qs u8[128]",
        "W = d · sc · q − dmin · m, sc and m 6 bits for 32 weights",
        f"{_LONG_HALVES} The fifth bit of weight 32i + j is bit i of qh[j]. {_SIX_BITS}",
    ),
    _row(
        "Q6_K",
        "ql u8[128], qh u8[64], scales i8[16], d f16",
        "W = d · sc · (q − 32), sc 8 bits for 16 weights",
        "Weights 128h + j and 128h + 64 + j have the low and the high nibble of ql[64h + j], with"
        " j up to 63. The high bits of weight 128h + 32i + j are bits 2i and 2i + 1 of"
        " qh[32h + j]. sc of group s is scales[s].",
    ),
    _row("MXFP4", "e u8, qs u8[16]", "W = e2m1(q) · 2^(e − 127)", _HALVES),
    _row(
        "NVFP4",
        "d u8[4], qs u8[32]",
        "W = e2m1(q) · ue4m3(d) · scale, d for 16 weights",
        "Weights 16s + j and 16s + 8 + j are the low and the high nibble of qs[8s + j]: not the"
        " order of safetensors. ue4m3 is E4M3 whose sign bit is not used; 0x7f is 0. scale is 1"
        " where it is absent; made of compressed-tensors it is 1 / weight_global_scale, of ModelOpt"
        " weight_scale_2.",
    ),
    _row(
        "IQ1_S",
        "d f16, qs u8[32], qh u16[8]",
        "W = d · (2sc + 1) · (grid[index] ± 1/8), sc 3 bits for 32 weights",
        f"{_GRID}: the low 8 bits of index g are qs[g], the high 3 bits 3(g mod 4) and on of"
        " qh[⌊g/4⌋]. There sc is bits 12 to 14; with bit 15 the eighth is taken off.",
    ),
    _row(
        "IQ1_M",
        "qs u8[32], qh u8[16], scales u8[8]",
        "W = d · (2sc + 1) · (grid[index] ± 1/8), sc 3 bits for 16 weights",
        f"{_GRID}: the low 8 bits of index g are qs[g], the high 3 are in nibble g of qh, whose"
        " highest bit takes the eighth off. scales are four 16-bit words: the top 4 bits of each,"
        " the first lowest, are d as f16; sc of group s is bits 3(s mod 4) and on of word ⌊s/4⌋.",
    ),
    _row(
        "IQ2_XXS",
        "d f16, qs u16[32]",
        "W = d/4 · (sc + 1/2) · grid[index] with signs, sc 4 bits for 32 weights",
        f"{_GRID}. 32 weights have 8 bytes: four indices, then a 32-bit word of four times the"
        f" signs, the first lowest, and sc on top; {_SIGNS}.",
    ),
    _row(
        "IQ2_XS",
        "d f16, qs u16[32], scales u8[8]",
        "W = d/4 · (sc + 1/2) · grid[index] with signs, sc 4 bits for 16 weights",
        f"{_GRID}: index g is the low 9 bits of qs[g], the signs are the high 7; {_SIGNS}. sc are"
        " the nibbles of scales, the low one first.",
    ),
    _row(
        "IQ2_S",
        "d f16, qs u8[32], signs u8[32], qh u8[8], scales u8[8]",
        "W = d/4 · (sc + 1/2) · grid[index] with signs, sc 4 bits for 16 weights",
        f"{_GRID}: the low 8 bits of index g are qs[g], the high 2 are bits 2(g mod 4) and on of"
        " qh[⌊g/4⌋]. Bit j of signs[g] is the sign of weight 8g + j. sc are the nibbles of scales,"
        " the low one first.",
    ),
    _row(
        "IQ3_XXS",
        "d f16, qs u8[64], signs u32[8]",
        "W = d/2 · (sc + 1/2) · grid[index] with signs, sc 4 bits for 32 weights",
        f"{_GRID_OF_FOUR}: index g is qs[g]. A word of signs has four times the signs, the first"
        f" lowest, and sc on top; {_SIGNS}.",
    ),
    _row(
        "IQ3_S",
        "d f16, qs u8[64], qh u8[8], signs u8[32], scales u8[4]",
        "W = d · (2sc + 1) · grid[index] with signs, sc 4 bits for 32 weights",
        f"{_GRID_OF_FOUR}: the low 8 bits of index g are qs[g], the ninth is bit g mod 8 of"
        " qh[⌊g/8⌋]. Bit j of signs[g] is the sign of weight 8g + j. sc are the nibbles of scales,"
        " the low one first.",
    ),
    _row("IQ4_NL", "d f16, qs u8[16]", "W = d · table[q]", f"{_HALVES} {_TABLE}"),
    _row(
        "IQ4_XS",
        "d f16, scales_h u16, scales_l u8[4], qs u8[128]",
        "W = d · (sc − 32) · table[q], sc 6 bits for 32 weights",
        "Weights 32s + j and 32s + 16 + j are the low and the high nibble of qs[16s + j]. The low 4"
        " bits of sc are the nibbles of scales_l, the low one first; the high 2 of group s are bits"
        f" 2s and 2s + 1 of scales_h. {_TABLE}",
    ),
    _row(
        "TQ1_0",
        "qs u8[48], qh u8[4], d f16",
        "W = d · (q − 1), five q to a byte",
        "q = ⌊3 · (3^i · byte mod 256) / 256⌋. Weight 32i + j is digit i of qs[j], with j up to 31;"
        " weight 160 + 16i + j digit i of qs[32 + j]; weight 240 + 4i + j digit i of qh[j].",
    ),
    _row("TQ2_0", "qs u8[64], d f16", "W = d · (q − 1)", _QUARTERS),
)
