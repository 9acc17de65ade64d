"""What the engine computes with: kernels as functions of torch tensors."""

from volta_runtime.ops.linear import linear
from volta_runtime.ops.native import KernelsMissingError, kernels_info
from volta_runtime.ops.nvfp4 import (
    NVFP4Weight,
    half_linear,
    nvfp4_dequantize,
    nvfp4_linear,
    nvfp4_pack,
    nvfp4_unpack,
)
from volta_runtime.ops.packed import PackedWeight

__all__ = [
    "KernelsMissingError",
    "NVFP4Weight",
    "PackedWeight",
    "half_linear",
    "kernels_info",
    "linear",
    "nvfp4_dequantize",
    "nvfp4_linear",
    "nvfp4_pack",
    "nvfp4_unpack",
]
