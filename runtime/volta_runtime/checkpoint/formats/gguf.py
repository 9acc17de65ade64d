"""The types of GGUF: each tensor is blocks along K that hold codes and scales together."""

from volta_runtime.checkpoint.formats.row import Parameter, WeightFormat

_SOURCE = "ggml ggml-common.h (block_{}), ggml-quants.c; gguf quants.py"


def _row(
    dtype: str, weights: int, size: int, formula: str, *more: Parameter, note: str = ""
) -> WeightFormat:
    """A type whose blocks of so many weights take `size` bytes."""
    return WeightFormat(
        name=f"gguf-{dtype.lower()}",
        title=f"{dtype} of GGUF",
        parameters=(Parameter("weight", "codes", (dtype,)), *more),
        bits=size * 8 / weights,
        formula=formula,
        source=_SOURCE.format(dtype.lower()),
        group=(1, weights) if weights > 1 else None,
        container="gguf",
        note=note,
    )


_GRID = "W = d · scale · grid[index] with signs; the grids are tables of ggml"
_NVFP4_SCALE = Parameter("scale", "global", ("F32",), ("[1]", "[]"), "multiply", optional=True)
_NVFP4_INPUT = Parameter("input_scale", "activation", ("F32",), ("[1]", "[]"), "", optional=True)

ROWS = (
    _row("F32", 1, 4, "W = weight"),
    _row("F16", 1, 2, "W = weight"),
    _row("BF16", 1, 2, "W = weight"),
    _row("Q4_0", 32, 18, "W = d · (q − 8)"),
    _row("Q4_1", 32, 20, "W = d · q + m"),
    _row("Q5_0", 32, 22, "W = d · (q − 16)"),
    _row("Q5_1", 32, 24, "W = d · q + m"),
    _row("Q8_0", 32, 34, "W = d · q"),
    _row("Q2_K", 256, 84, "W = d · sc · q − dmin · m, sc and m 4 bits for 16 weights"),
    _row("Q3_K", 256, 110, "W = d · (sc − 32) · (q − 4), sc 6 bits for 16 weights"),
    _row("Q4_K", 256, 144, "W = d · sc · q − dmin · m, sc and m 6 bits for 32 weights"),
    _row("Q5_K", 256, 176, "W = d · sc · q − dmin · m, sc and m 6 bits for 32 weights"),
    _row("Q6_K", 256, 210, "W = d · sc · (q − 32), sc 8 bits for 16 weights"),
    _row("MXFP4", 32, 17, "W = e2m1(q) · 2^(e − 127)"),
    _row(
        "NVFP4",
        64,
        36,
        "W = e2m1(q) · ue4m3(d) · scale, d for 16 weights",
        _NVFP4_SCALE,
        _NVFP4_INPUT,
        note="Within 16 weights the low nibbles are the first eight, the high ones the last: not"
        " the order of safetensors. The scale of the tensor is a tensor of its own.",
    ),
    _row("IQ1_S", 256, 50, _GRID),
    _row("IQ1_M", 256, 56, _GRID),
    _row("IQ2_XXS", 256, 66, _GRID),
    _row("IQ2_XS", 256, 74, _GRID),
    _row("IQ2_S", 256, 82, _GRID),
    _row("IQ3_XXS", 256, 98, _GRID),
    _row("IQ3_S", 256, 110, _GRID),
    _row("IQ4_NL", 32, 18, "W = d · table[q]"),
    _row("IQ4_XS", 256, 136, "W = d · (sc − 32) · table[q], sc 6 bits for 32 weights"),
    _row("TQ1_0", 256, 54, "W = d · (q − 1), five q to a byte, in base 3"),
    _row("TQ2_0", 256, 66, "W = d · (q − 1)"),
)
