"""NVFP4: E2M1 codes, two to a byte (the low nibble is the even k), E4M3 scales of 16 weights."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

_SCALAR = ("[]", "[1]")


def _codes(*also: str, name: str = "weight") -> Parameter:
    return Parameter(name, "codes", ("U8",), ("[N, K/2]",), also=also)


def _scale(dtypes: tuple[str, ...] = ("F8_E4M3",), shape: str = "[N, K/G]") -> Parameter:
    return Parameter("weight_scale", "scale", dtypes, (shape,), "multiply", check="nvfp4-scale")


def _modelopt_global(optional: bool = False) -> Parameter:
    return Parameter(
        "weight_scale_2",
        "global",
        ("F32",),
        _SCALAR,
        "multiply",
        optional=optional,
        check="nvfp4-global",
    )


_INPUT_SCALE = Parameter("input_scale", "activation", ("F32",), _SCALAR, "multiply", optional=True)
# The house form's own: no rule says in which direction it is meant (the doctor: scale-direction).
_UNTOLD = Parameter(
    "weight_global_scale", "global", ("F32",), _SCALAR, optional=True, check="nvfp4-global"
)
_HOUSE_GLOBAL = (
    "Of a weight_global_scale no rule says whether it divides or multiplies: such a weight is not"
    " decoded."
)

ROWS = (
    WeightFormat(
        name="nvfp4-pack-quantized",
        title="NVFP4 of compressed-tensors, W4A4 and weights only (NVFP4A16)",
        parameters=(
            _codes(name="weight_packed"),
            _scale(),
            Parameter(
                "weight_global_scale",
                "global",
                ("F32",),
                ("[1]",),
                "divide",
                check="nvfp4-global",
            ),
            Parameter(
                "input_global_scale", "activation", ("F32",), ("[1]",), "divide", optional=True
            ),
        ),
        sizes={"G": 16},
        bits=4.5,
        formula="W = e2m1(weight_packed) · (weight_scale / weight_global_scale)",
        source="compressed-tensors compressors/nvfp4/base.py, quantization/lifecycle/forward.py;"
        " weight_global_scale = 448 · 6 / amax",
        note="Static input scales (input_global_scale) are there for W4A4 alone.",
    ),
    WeightFormat(
        name="modelopt-nvfp4",
        title="NVFP4 of NVIDIA ModelOpt, W4A4 and W4A16_NVFP4",
        parameters=(_codes(), _scale(), _modelopt_global(), _INPUT_SCALE),
        sizes={"G": 16},
        bits=4.5,
        formula="W = e2m1(weight) · (weight_scale · weight_scale_2)",
        source="modelopt torch/quantization/qtensor/nvfp4_tensor.py; weight_scale_2 = amax /"
        " (6 · 448), the reciprocal of compressed-tensors' weight_global_scale",
        note="W4A16_NVFP4 has no input_scale; in W4A8_NVFP4_FP8 weight_scale_2 is amax / 448.",
    ),
    WeightFormat(
        name="modelopt-nvfp4-awq",
        title="NVFP4_AWQ of NVIDIA ModelOpt",
        parameters=(
            _codes(),
            _scale(),
            _modelopt_global(),
            Parameter("pre_quant_scale", "columns", FLOATS, ("[K]",), "multiply"),
            _INPUT_SCALE,
        ),
        sizes={"G": 16},
        bits=4.5,
        formula="W = e2m1(weight) · (weight_scale · weight_scale_2) · pre_quant_scale[k]",
        source="modelopt torch/export/quant_utils.py; the layer computes (x · pre_quant_scale) Wᵀ",
        note="An engine that ignores pre_quant_scale computes another model.",
    ),
    WeightFormat(
        name="nvfp4-g16",
        title="NVFP4 as quant_method nvfp4 has it (TensorRT-LLM)",
        parameters=(_codes(), _scale(), _modelopt_global(), _INPUT_SCALE),
        sizes={"G": 16},
        bits=4.5,
        formula="W = e2m1(weight) · (weight_scale · weight_scale_2)",
        source="TensorRT-LLM tensorrt_llm/_torch/model_config.py (group_size 16 alone); names and"
        " direction are ModelOpt's",
        note="Scales in one dimension are in the order of its GPU kernels and are refused.",
    ),
    WeightFormat(
        name="nvfp4-g32",
        title="NVFP4 codes with plain scales of 32 weights (scale_dtype fp32 or bf16)",
        parameters=(
            _codes("weight_packed"),
            _scale(FLOATS),
            _modelopt_global(optional=True),
            _UNTOLD,
        ),
        sizes={"G": 32},
        bits=5,
        formula="W = e2m1(weight) · weight_scale [· weight_scale_2]",
        source="a house form: no public writer is known; by its names a scale multiplies",
        note=_HOUSE_GLOBAL,
        house=True,
    ),
    WeightFormat(
        name="nvfp4-block",
        title="NVFP4 codes with one plain scale for a block (weight_block_size [128, 32])",
        parameters=(
            _codes("weight_packed"),
            _scale(FLOATS, "[⌈N/R⌉, ⌈K/C⌉]"),
            _modelopt_global(optional=True),
            _UNTOLD,
        ),
        sizes={"R": 128, "C": 32},
        bits=4.01,
        formula="W = e2m1(weight) · weight_scale[⌊n/R⌋, ⌊k/C⌋] [· weight_scale_2]",
        source="a house form: no public writer is known; by its names a scale multiplies",
        note=_HOUSE_GLOBAL,
        house=True,
    ),
)
