"""FP8 E4M3 weights: a scale for the tensor, for each row, for each block, or E8M0 for a group."""

from volta_runtime.checkpoint.formats.row import FLOATS, Parameter, WeightFormat

_TENSOR = ("[]", "[1]", "[1, 1]")
_CHANNEL = ("[N, 1]", "[N]")
_BLOCK = "[⌈N/R⌉, ⌈K/C⌉]"
_ANY = (*_TENSOR, *_CHANNEL, _BLOCK)
_OF_ANY = "W = weight · weight_scale, of the tensor, of row n or of block [⌊n/R⌋, ⌊k/C⌋]"
_KEPT_BLOCK = "[⌈N/R⌉, 1, ⌈K/C⌉, 1]"

_CODES = Parameter("weight", "codes", ("F8_E4M3",), ("[N, K]",))
_INPUT_SCALE = Parameter("input_scale", "activation", FLOATS, _TENSOR, "multiply", optional=True)


def _scale(*shapes: str, dtypes: tuple[str, ...] = FLOATS) -> Parameter:
    return Parameter("weight_scale", "scale", dtypes, shapes, "multiply")


ROWS = (
    WeightFormat(
        name="fp8-tensor",
        title="FP8 with one scale for the tensor (quant_method fp8)",
        parameters=(_CODES, _scale(*_TENSOR), _INPUT_SCALE),
        bits=8,
        formula="W = weight · weight_scale",
        source="vLLM model_executor/layers/quantization/fp8.py",
    ),
    WeightFormat(
        name="fp8-channel",
        title="FP8 with a scale for each output feature",
        parameters=(_CODES, _scale(*_CHANNEL), _INPUT_SCALE),
        bits=8,
        formula="W = weight · weight_scale[n]",
        source="vLLM model_executor/layers/quantization (fbgemm_fp8.py, ptpc_fp8.py)",
    ),
    WeightFormat(
        name="fp8-block",
        title="FP8 with a scale for a block of 128 × 128 (DeepSeek, Qwen)",
        parameters=(
            _CODES,
            Parameter(
                "weight_scale_inv",
                "scale",
                (*FLOATS, "F8_E8M0"),
                (_BLOCK,),
                "multiply",
                also=("weight_scale",),
            ),
            _INPUT_SCALE,
        ),
        sizes={"R": 128, "C": 128},
        bits=8,
        formula="W = weight · weight_scale_inv[⌊n/R⌋, ⌊k/C⌋]",
        source="transformers integrations/finegrained_fp8.py; LMDeploy FP8Format.dequant",
        note="The scale multiplies, whatever its name says.",
    ),
    WeightFormat(
        name="float-quantized",
        title="FP8 of compressed-tensors",
        parameters=(_CODES, _scale(*_ANY), _INPUT_SCALE),
        sizes={"R": 128, "C": 128},
        bits=8,
        formula=_OF_ANY,
        source="compressed-tensors compressors/naive_quantized/base.py",
    ),
    WeightFormat(
        name="modelopt-fp8",
        title="FP8 of NVIDIA ModelOpt",
        parameters=(_CODES, _scale(*_ANY, _KEPT_BLOCK), _INPUT_SCALE),
        sizes={"R": 128, "C": 128},
        bits=8,
        formula=_OF_ANY,
        source="modelopt torch/export/quant_utils.py; weight_scale = amax / 448",
        note="FP8_PB_WO, of blocks, keeps the dimensions that it took the greatest weight over, as"
        " ones; some exports of it have weight_scale_inv [⌈N/R⌉, ⌈K/C⌉], as fp8-block.",
    ),
    WeightFormat(
        name="mxfp8",
        title="MXFP8 of compressed-tensors (mxfp8-quantized) and NVIDIA ModelOpt",
        parameters=(_CODES, _scale("[N, K/G]", dtypes=("U8", "F8_E8M0"))),
        sizes={"G": 32},
        bits=8.25,
        formula="W = weight · 2^(weight_scale − 127)",
        source="compressed-tensors compressors/mxfp8/base.py; modelopt"
        " torch/quantization/qtensor/mxfp8_tensor.py",
    ),
)
