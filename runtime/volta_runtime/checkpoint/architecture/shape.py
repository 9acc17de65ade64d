"""What is known of a model's shape, in one set of names."""

from dataclasses import dataclass
from typing import Any, Literal

LayerKind = Literal["full", "sliding", "linear", "hybrid", "mla", "none"]

LAYERS = 4096  # more than any model has; a config that says so is not to be believed
_NUMBER = 1 << 31  # and no size of one dimension reaches this


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    kind: what it keeps of the past: all keys and values, those of a window, the state of a linear
        attention, keys and values and a state too (hybrid), MLA's latent vectors, or nothing.
    experts: routed experts, 0 for a dense layer.
    kv_heads, head_dim: where its own differ from the model's.
    compress: tokens that share an entry of the cache (DeepSeek-V4), beside which it keeps a window
        of whole ones; 0 for that window alone.
    """

    kind: LayerKind
    experts: int = 0
    kv_heads: int | None = None
    head_dim: int | None = None
    compress: int = 1


@dataclass(frozen=True)
class Architecture:
    """What sizes and speeds follow from; a number that is not told is None, 0 where none is meant.

    names: config.json's `architectures`; model_type: its kind, or GGUF's general.architecture.
    layers: by number, without those of multi-token prediction (`mtp_layers`).
    window: tokens that a sliding layer keeps. kv_lora_rank, qk_rope_head_dim: of MLA.
    linear_*: of linear attention (Qwen3-Next's gated delta net, Mamba): heads, their sizes, and the
        width of the convolution. Mamba's groups are key heads here, its states the key head's size.
    experts_per_token, shared_experts: of a mixture; expert_size: one expert's intermediate size.
    tied: whether the head is the embedding's own matrix. dtype: the unquantised weights', as
        safetensors names it.
    """

    model_type: str = ""
    names: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    hidden_size: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    max_position: int | None = None
    window: int | None = None
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int | None = None
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_size: int = 0
    mtp_layers: int = 0
    tied: bool = False
    dtype: str | None = None
    vision: bool = False


def whole(value: Any) -> int | None:
    """Return a number that can be a size; None for anything else that a hostile config holds."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _NUMBER:
        return value
    return None


def numbers(value: Any) -> list[int] | None:
    """Return a list with a number for each layer; None where it is none."""
    if isinstance(value, list) and 0 < len(value) <= LAYERS:
        found = [whole(int(item) if isinstance(item, bool) else item) for item in value]
        return None if None in found else [item for item in found if item is not None]
    return None
