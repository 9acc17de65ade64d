"""What the engine computes with: kernels as functions of torch tensors."""

from volta_runtime.ops.native import KernelsMissingError, kernels_info
from volta_runtime.ops.nvfp4 import (
    NVFP4Weight,
    half_linear,
    nvfp4_dequantize,
    nvfp4_linear,
    nvfp4_pack,
    nvfp4_unpack,
)

__all__ = [
    "KernelsMissingError",
    "NVFP4Weight",
    "half_linear",
    "kernels_info",
    "nvfp4_dequantize",
    "nvfp4_linear",
    "nvfp4_pack",
    "nvfp4_unpack",
]
