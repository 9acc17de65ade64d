"""Weights as they are, neither coded nor scaled."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

ROWS = (
    WeightFormat(
        name="dense",
        title="FP16, BF16, FP32",
        parameters=(Parameter("weight", "codes", (*FLOATS, "F64"), held=2),),
        bits=16,
        formula="W = weight",
        source="safetensors; in GPU memory FP16, since Volta computes in neither BF16 nor TF32",
    ),
)
