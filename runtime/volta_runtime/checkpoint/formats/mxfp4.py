"""MXFP4 of the OCP Microscaling specification: E2M1 codes, a power of two for 32 weights."""

from volta_runtime.checkpoint.formats.row import Parameter, WeightFormat

ROWS = (
    WeightFormat(
        name="mxfp4-pack-quantized",
        title="MXFP4 of compressed-tensors",
        parameters=(
            Parameter("weight_packed", "codes", ("U8",), ("[N, K/2]",)),
            Parameter("weight_scale", "scale", ("U8", "F8_E8M0"), ("[N, K/G]",), "multiply"),
        ),
        sizes={"G": 32},
        bits=4.25,
        formula="W = e2m1(weight_packed) · 2^(weight_scale − 127)",
        source="compressed-tensors compressors/mxfp4/base.py, compressors/mx_utils.py",
    ),
    WeightFormat(
        name="mxfp4-blocks",
        title="MXFP4 of gpt-oss",
        parameters=(
            Parameter("blocks", "codes", ("U8",), ("[N, K/32, 16]",)),
            Parameter("scales", "scale", ("U8", "F8_E8M0"), ("[N, K/G]",), "multiply"),
        ),
        sizes={"G": 32},
        bits=4.25,
        formula="W = e2m1(blocks) · 2^(scales − 127)",
        source="openai/gpt-oss gpt_oss/torch/weights.py; transformers integrations/mxfp4.py",
        note="Names end in _blocks and _scales (experts.gate_up_proj_blocks).",
    ),
)
