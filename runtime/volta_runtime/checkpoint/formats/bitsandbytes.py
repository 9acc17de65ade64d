"""bitsandbytes: recognised, so that it is named; nothing of Volta's own decodes it."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

ROWS = (
    WeightFormat(
        name="bnb-nf4",
        title="NF4 and FP4 of bitsandbytes",
        parameters=(
            # A column of bytes, as whichever type the trainer wanted (bnb_4bit_quant_storage).
            Parameter("weight", "codes", ("U8", *FLOATS)),
            Parameter("weight.absmax", "scale", ("F32", "U8"), (), "multiply"),
            Parameter("weight.quant_map", "table", ("F32",), ("[16]",)),
            Parameter("weight.nested_absmax", "scale", ("F32",), (), "multiply", True),
            Parameter("weight.nested_quant_map", "table", ("F32",), ("[256]",), optional=True),
            Parameter(
                "weight.quant_state.bitsandbytes__nf4",
                "layout",
                ("U8",),
                also=("weight.quant_state.bitsandbytes__fp4",),
            ),
        ),
        bits=4.13,
        formula="W = quant_map[code] · absmax[⌊i/64⌋], i the weight's place in row-major order",
        source="bitsandbytes functional.py (QuantState), csrc/kernels.cu",
        group=(1, 64),
        refused="its shape and its groups stand in a blob of JSON (quant_state); quantise the"
        " original again",
        note="The high nibble of a byte is the even i. Groups run on from one row into the next. An"
        " absmax of bytes is coded itself: nested_quant_map[absmax] ·"
        " nested_absmax[⌊⌊i/64⌋/256⌋] + nested_offset of quant_state.",
    ),
    WeightFormat(
        name="bnb-int8",
        title="LLM.int8() of bitsandbytes",
        parameters=(
            Parameter("weight", "codes", ("I8",), ("[N, K]",)),
            Parameter("SCB", "scale", ("F32",), ("[N]",), "multiply"),
            Parameter("weight_format", "layout", ("U8",), ("[]", "[1]"), optional=True),
        ),
        bits=8,
        formula="W = weight · SCB[n] / 127",
        source="bitsandbytes nn/modules.py (Linear8bitLt), functional.py (int8_vectorwise_dequant)",
        refused="its inputs keep outliers in FP16, so that it needs bitsandbytes itself; quantise"
        " the original again",
    ),
)
