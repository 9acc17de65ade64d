"""bitsandbytes: recognised, so that it is named; no engine of ours reads it."""

from volta_runtime.checkpoint.formats.row import Parameter, WeightFormat

ROWS = (
    WeightFormat(
        name="bnb-nf4",
        title="NF4 and FP4 of bitsandbytes",
        parameters=(
            Parameter("weight", "codes", ("U8",)),
            Parameter("weight.absmax", "scale", ("F32", "U8"), (), "multiply"),
            Parameter("weight.quant_map", "table", ("F32",), ("[16]",)),
            Parameter("weight.nested_absmax", "scale", ("F32",), (), "multiply", True),
            Parameter("weight.nested_quant_map", "table", ("F32",), ("[256]",), optional=True),
            Parameter(
                "weight.quant_state.bitsandbytes__nf4",
                "sizes",
                ("U8",),
                also=("weight.quant_state.bitsandbytes__fp4",),
            ),
        ),
        bits=4.13,
        formula="W = quant_map[code] · absmax[⌊i/64⌋]",
        source="bitsandbytes functional.py (QuantState)",
        group=(1, 64),
        refused="its shape and its groups stand in a blob of JSON (quant_state), and it has no"
        " kernel that serves on Volta: quantise the original again",
        note="The codes are one column of bytes: the weight's shape is not in the header.",
    ),
)
