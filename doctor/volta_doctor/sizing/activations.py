"""The largest buffers of a forward pass, as engines take them when they start: an estimate."""

from volta_doctor.catalog.engines import Memory
from volta_doctor.sizing.split import Split
from volta_runtime.checkpoint.architecture import Architecture

_BYTES = 2  # of an activation: FP16
_CHUNK = 64  # tokens between which a gated delta net writes its state (fla chunk_gated_delta_rule)


def activation_bytes(
    architecture: Architecture, memory: Memory, split: Split, sequences: int
) -> int:
    """Return the bytes on one GPU: those of a step of prompts, or of choosing the next tokens.

    A step holds the hidden states, the residual and its sum, and the widest layer's buffers. Tokens
    are chosen from logits that every rank has of all words, with their sorted copy, indices and
    sums (vLLM's profile run, vllm #10511: Llama-3-8B 1.26 GiB with 8192 tokens and 256 sequences,
    on one GPU and on two).
    """
    a = architecture
    ranks = split.ranks
    hidden = a.hidden_size or 0
    widest = max(_mlp(a, split), _attention(a, ranks), _linear(a, ranks))
    step = memory.step_tokens * (3 * hidden + widest) * _BYTES
    rows = memory.step_tokens if memory.logits == "step" else sequences
    return max(step, rows * (a.vocab_size or 0) * memory.logit_bytes)


def _mlp(a: Architecture, split: Split) -> int:
    """Gate, up and their product; with experts once for each that a token goes to.

    (vLLM fused_moe.py: intermediate_cache13 and intermediate_cache2.)
    """
    ranks = split.ranks
    dense = 3 * (a.intermediate_size or 0) // ranks
    if not a.experts:
        return dense
    size = a.expert_size // split.within_expert
    routed = a.experts_per_token * (max(2 * size, a.hidden_size or 0) + size)
    return max(dense, routed + 3 * a.shared_experts * a.expert_size // ranks)


def _attention(a: Architecture, ranks: int) -> int:
    """Queries, keys, values and what attention gives."""
    if a.kv_lora_rank:
        query = a.qk_nope_head_dim + a.qk_rope_head_dim
        values = a.v_head_dim or 0
        return (a.heads or 0) * (2 * query + 2 * values) // ranks
    dim = a.head_dim or 0
    return (2 * (a.heads or 0) + 2 * (a.kv_heads or 0)) * dim // ranks


def _linear(a: Architecture, ranks: int) -> int:
    """Before and behind the convolution, and the states between chunks, in FP32."""
    keys = a.linear_key_heads * a.linear_key_head_dim
    values = a.linear_value_heads * a.linear_value_head_dim
    states = 2 * values * a.linear_key_head_dim // _CHUNK
    return (2 * (2 * keys + values) + 2 * values + states) // ranks
