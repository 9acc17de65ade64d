"""Whole numbers of compressed-tensors: packed into 32-bit words, or bytes."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

_SCALE = Parameter("weight_scale", "scale", FLOATS, ("[N, 1]", "[N, K/G]", "[1]", "[]"), "multiply")


def _packed(bits: int, per_word: int) -> WeightFormat:
    return WeightFormat(
        name=f"pack-quantized-int{bits}",
        title=f"INT{bits} of compressed-tensors, packed into 32-bit words",
        parameters=(
            Parameter("weight_packed", "codes", ("I32",), (f"[N, ⌈K/{per_word}⌉]",)),
            _SCALE,
            Parameter("weight_shape", "layout", ("I64", "I32"), ("[2]",)),
            Parameter(
                "weight_zero_point",
                "zero",
                ("I32",),
                (f"[⌈N/{per_word}⌉, 1]", f"[⌈N/{per_word}⌉, K/G]"),
                "subtract",
                optional=True,
            ),
            Parameter("weight_g_idx", "order", ("I32",), ("[K]",), optional=True),
        ),
        bits=bits + 16 / 128,
        formula=f"W = (q − z) · weight_scale, q and z the {bits}-bit fields less {1 << (bits - 1)},"
        " z 0 where there is no weight_zero_point",
        source="compressed-tensors compressors/pack_quantized/base.py and helpers.py",
        note=f"{per_word} fields to a word, the lowest first: along K, zero points along N. A K"
        f" that is no multiple of {per_word} is filled up; weight_shape has the true one. The group"
        " of column k is ⌊k/G⌋, or weight_g_idx[k].",
    )


ROWS = (
    _packed(4, 8),
    _packed(8, 4),
    WeightFormat(
        name="int-quantized",
        title="INT8 of compressed-tensors, a byte each (W8A8)",
        parameters=(
            Parameter("weight", "codes", ("I8",), ("[N, K]",)),
            _SCALE,
            Parameter(
                "weight_zero_point",
                "zero",
                ("I8",),
                ("[N, 1]", "[N, K/G]", "[1]", "[]"),
                "subtract",
                optional=True,
            ),
            Parameter("input_scale", "activation", FLOATS, ("[1]", "[]"), "multiply", True),
            Parameter("input_zero_point", "activation", ("I8",), ("[1]", "[]"), "subtract", True),
        ),
        bits=8,
        formula="W = (weight − weight_zero_point) · weight_scale",
        source="compressed-tensors compressors/naive_quantized/base.py",
    ),
)
