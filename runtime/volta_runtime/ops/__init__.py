"""What the engine computes with: kernels as functions of torch tensors."""

from volta_runtime.ops.activation import GATED_KINDS, gated_activation
from volta_runtime.ops.attention import paged_decode
from volta_runtime.ops.embedding import embedding
from volta_runtime.ops.expert_linear import (
    PackedExperts,
    Routes,
    expert_linear,
    route_tile,
    stack_experts,
)
from volta_runtime.ops.kv_cache import kv_cache_copy, kv_cache_swap, kv_cache_write
from volta_runtime.ops.linear import linear
from volta_runtime.ops.moe import moe_combine, moe_permute, moe_route
from volta_runtime.ops.native import KernelsMissingError, kernels_info
from volta_runtime.ops.norm import rms_norm
from volta_runtime.ops.nvfp4 import NVFP4Weight, half_linear, nvfp4_linear, nvfp4_pack
from volta_runtime.ops.packed import PackedWeight
from volta_runtime.ops.prefill import paged_prefill
from volta_runtime.ops.rope import qk_norm_rope
from volta_runtime.ops.rope_table import rope_cache
from volta_runtime.ops.sampling import (
    apply_bias,
    apply_mask,
    apply_penalties,
    count_tokens,
    sample,
    token_logprobs,
    top_logprobs,
)

__all__ = [
    "GATED_KINDS",
    "KernelsMissingError",
    "NVFP4Weight",
    "PackedExperts",
    "PackedWeight",
    "Routes",
    "apply_bias",
    "apply_mask",
    "apply_penalties",
    "count_tokens",
    "embedding",
    "expert_linear",
    "gated_activation",
    "half_linear",
    "kernels_info",
    "kv_cache_copy",
    "kv_cache_swap",
    "kv_cache_write",
    "linear",
    "moe_combine",
    "moe_permute",
    "moe_route",
    "nvfp4_linear",
    "nvfp4_pack",
    "paged_decode",
    "paged_prefill",
    "qk_norm_rope",
    "rms_norm",
    "rope_cache",
    "route_tile",
    "sample",
    "stack_experts",
    "token_logprobs",
    "top_logprobs",
]
