"""Each row decodes what its format's own library wrote to the library's own weights, bit for bit.

Where the library works in FP16 or BF16 our FP32 result is rounded to that first: both then round
the one product once. GPTQModel and AutoAWQ multiply in FP16, compressed-tensors in the dtype of the
scales, NVFP4 and ModelOpt in FP32.
"""

import numpy as np
import pytest
import torch

CHECKPOINTS = {
    "ct-nvfp4": "nvfp4-pack-quantized",
    "ct-nvfp4a16": "nvfp4-pack-quantized",
    "ct-mxfp4": "mxfp4-pack-quantized",
    "ct-mxfp8": "mxfp8",
    "ct-int4": "pack-quantized-int4",
    "ct-int4-asym": "pack-quantized-int4",
    "ct-int8": "pack-quantized-int8",
    "ct-int8-bytes": "int-quantized",
    "ct-fp8-tensor": "float-quantized",
    "ct-fp8-channel": "float-quantized",
    "ct-fp8-block": "float-quantized",
    "modelopt-nvfp4": "modelopt-nvfp4",
    "modelopt-w4a16-nvfp4": "modelopt-nvfp4",
    "modelopt-nvfp4-awq": "modelopt-nvfp4-awq",
    "modelopt-fp8": "modelopt-fp8",
    "modelopt-fp8-block": "modelopt-fp8",
    "awq": "awq",
    "gptq-sym": "gptq",
    "gptq-actorder": "gptq",
    "gptq-asym": "gptq",
    "gptq-v2": "gptq",
    "gptq-int8": "gptq",
    "gptq-int3": "gptq",
    "gpt-oss": "mxfp4-blocks",
    "gguf-llama": "gguf-q8_0",
    "gguf-types": None,  # each type
}
GROUPS = {
    "ct-mxfp4": (1, 32),
    "ct-mxfp8": (1, 32),
    "ct-int8": (1, 0),
    "ct-fp8-tensor": (0, 0),
    "ct-fp8-channel": (1, 0),
    "ct-fp8-block": (128, 128),
    "modelopt-fp8": (0, 0),
    "modelopt-fp8-block": (128, 128),
    "awq": (1, 32),
    "gptq-int3": (1, 32),
    "gguf-llama": (1, 32),
}
TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def rounded(values, dtype):
    """FP32 as the other dtype, BF16 as its bits."""
    tensor = torch.from_numpy(values).to(TORCH[dtype])
    return (tensor.view(torch.uint16) if dtype == "BF16" else tensor).numpy()


@pytest.mark.parametrize(("name", "row"), CHECKPOINTS.items(), ids=CHECKPOINTS)
def test_weights_are_the_librarys(name, row, checkpoint, expected, decoded):
    held = checkpoint(name)
    assert [str(fault) for fault in held.faults if fault.level == "fail"] == []
    for module, (info, theirs) in expected(name).items():
        found = held.modules[module]
        assert found.format.name == (row or f"gguf-{module}")
        ours = decoded(found, gptq_v2=name == "gptq-v2")
        assert ours.dtype == np.float32
        assert ours.shape == found.shape == info.shape
        np.testing.assert_array_equal(rounded(ours, info.dtype), theirs)
        assert name not in GROUPS or found.group == GROUPS[name]
