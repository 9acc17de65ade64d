"""nvfp4 as a method of its own: groups of 16 (TensorRT-LLM), 32 with scale_dtype, or blocks.

Source: NVIDIA/TensorRT-LLM _torch/model_config.py for groups of 16. No public tool writes groups of
32 or blocks of [128, 32]: that is a form of single houses, read as its fields say.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading, blanket
from volta_runtime.checkpoint.scheme import Scheme
from volta_runtime.checkpoint.tensors import FLOATS_BY_NAME

_DTYPES = {
    **FLOATS_BY_NAME,
    "fp32": "F32",
    "bf16": "BF16",
    "fp16": "F16",
    "fp8": "F8_E4M3",
    "e4m3": "F8_E4M3",
}


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    size = fields.number("group_size")
    block = fields.numbers("weight_block_size", 2)
    named = fields.text("scale_dtype").removeprefix("torch.").lower()
    if named and named not in _DTYPES:
        fields.wrong("scale_dtype", " or ".join(sorted(_DTYPES)))
    if size is not None and size < 1:
        fields.wrong("group_size", "a positive whole number")
    if block and block[0] > 1:
        name, group = "nvfp4-block", (block[0], block[1])
    else:
        columns = block[1] if block else size if size and size > 0 else 16
        name, group = "nvfp4-g16" if columns == 16 else "nvfp4-g32", (1, columns)
    scheme = Scheme(
        format=name,
        also=("modelopt-nvfp4",) if name == "nvfp4-g16" else (),
        file=fields.file,
        where=fields.where,
        bits=4,
        group=group,
        scale_dtype=_DTYPES.get(named),
        blanket=True,
    )
    return blanket(fields, scheme)
