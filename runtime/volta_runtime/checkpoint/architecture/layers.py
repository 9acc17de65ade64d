"""What each layer of a config.json keeps of the past, and which layers have experts.

Models tell it in a dozen ways; each is one small function, and the first that applies counts.
"""

from collections.abc import Callable, Mapping
from typing import Any

from volta_runtime.checkpoint.architecture.shape import LAYERS, LayerKind, numbers, whole

Fields = Mapping[str, Any]
Kinds = list[LayerKind]

# By the names of layer_types and layers_block_type (transformers, ALLOWED_LAYER_TYPES and the older
# ones). A name that is not here is taken for a layer that keeps everything: rather too much.
_KINDS: Mapping[str, LayerKind] = {
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "local_attention": "sliding",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "recurrent": "linear",
    "conv": "linear",
    "hybrid": "hybrid",
    "moe": "none",
    "mlp": "none",
}
_NEMOTRON: Mapping[str, LayerKind] = {"*": "full", "M": "linear", "-": "none", "E": "none"}
_STATE_SPACE = ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv7")


COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def count_of(text: Fields) -> int | None:
    """Return how many layers a config says that there are, None where no model has as many."""
    for name in COUNTS:
        if (count := whole(text.get(name))) is not None:
            return count if count <= LAYERS else None
    return None


def kinds_of(text: Fields, window: bool, latent: bool) -> Kinds:
    """Return the kind of each layer; window and latent say whether it has such at all."""
    count = count_of(text) or 0
    kinds = next((found for way in _WAYS if (found := way(text, count))), [])
    if not kinds:
        kinds = _windows(text, count) if window else ["full"] * count
    shared = whole(text.get("num_kv_shared_layers")) or 0  # Gemma 3n, 4: they read earlier ones
    last = len(kinds) - shared if 0 < shared < len(kinds) else len(kinds)
    kinds = [kind if number < last else "none" for number, kind in enumerate(kinds)]
    return ["mla" if latent and kind == "full" else kind for kind in kinds]


def _listed(text: Fields, _: int) -> Kinds:
    for name in ("layer_types", "layers_block_type"):
        types = text.get(name)
        if isinstance(types, list) and 0 < len(types) <= LAYERS:
            words = [kind for kind in types if isinstance(kind, str)]
            return [_KINDS.get(kind, "full") for kind in words]
    return []


def _pattern(text: Fields, _: int) -> Kinds:
    """Nemotron-H: a letter for each layer."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) <= LAYERS:
        return [_NEMOTRON.get(letter, "full") for letter in pattern]
    return []


def _every(text: Fields, count: int) -> Kinds:
    """Qwen3-Next: every n-th layer has full attention."""
    every = whole(text.get("full_attention_interval"))
    return _each(count, every, "linear") if every else []


def _kimi(text: Fields, count: int) -> Kinds:
    """Kimi Linear: the layers of each kind, counted from 1."""
    linear = text.get("linear_attn_config")
    full = numbers(linear.get("full_attn_layers")) if isinstance(linear, Mapping) else None
    return ["full" if n + 1 in full else "linear" for n in range(count)] if full else []


def _flags(text: Fields, _: int) -> Kinds:
    """MiniMax-01: 1 for full attention, 0 for linear."""
    flags = numbers(text.get("attn_type_list"))
    return ["full" if flag else "linear" for flag in flags] if flags else []


def _folded(text: Fields, count: int) -> Kinds:
    """DeepSeek-V4 folds the past of some layers; its window is beside that, not instead."""
    return ["full"] * count if numbers(text.get("compress_ratios")) else []


def _jamba(text: Fields, count: int) -> Kinds:
    period = whole(text.get("attn_layer_period"))
    offset = whole(text.get("attn_layer_offset")) or 0
    if not period:
        return []
    return ["full" if n % period == offset else "linear" for n in range(count)]


def _state_space(text: Fields, count: int) -> Kinds:
    return ["linear"] * count if text.get("model_type") in _STATE_SPACE else []


def _windows(text: Fields, count: int) -> Kinds:
    """Gemma: every n-th layer has no window; EXAONE spells it ("LLLG"); Qwen: from a layer on."""
    pattern = text.get("sliding_window_pattern", text.get("_sliding_window_pattern"))
    if isinstance(pattern, str) and pattern:
        return ["full" if pattern[n % len(pattern)] == "G" else "sliding" for n in range(count)]
    if every := whole(pattern):
        return _each(count, every, "sliding")
    if text.get("attention_chunk_size") and not text.get("sliding_window"):
        return _each(count, 4, "sliding")  # Llama 4
    first = whole(text.get("max_window_layers")) if "use_sliding_window" in text else 0
    return ["sliding" if n >= (first or 0) else "full" for n in range(count)]


_WAYS: tuple[Callable[[Fields, int], Kinds], ...] = (
    _listed,
    _pattern,
    _every,
    _kimi,
    _flags,
    _folded,
    _jamba,
    _state_space,
)


def _each(count: int, every: int, others: LayerKind) -> Kinds:
    return ["full" if (n + 1) % every == 0 else others for n in range(count)]


def experts_of(text: Fields, count: int, experts: int) -> list[int]:
    """Return the routed experts of each of the layers."""
    if not experts:
        return [0] * count
    has = next((rule for way in _EXPERTS if (rule := way(text))), None)
    return [experts if has is None or has(n) else 0 for n in range(count)]


Rule = Callable[[int], bool]


def _listed_experts(text: Fields) -> Rule | None:
    types = text.get("mlp_layer_types")
    if isinstance(types, list):
        return lambda n: n < len(types) and types[n] == "sparse"
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return lambda n: pattern[n : n + 1] == "E"
    blocks = text.get("layers_block_type")
    if isinstance(blocks, list) and "moe" in blocks:
        return lambda n: n < len(blocks) and blocks[n] == "moe"
    return None


def _dense_first(text: Fields) -> Rule | None:
    """DeepSeek, GLM: the first are dense; then all, or every n-th, or as a list says."""
    first = whole(text.get("first_k_dense_replace"))
    if flags := numbers(text.get("moe_layer_freq")):
        return lambda n: n < len(flags) and flags[n] > 0
    if first is None:
        return None
    freq = whole(text.get("moe_layer_freq")) or 1
    return lambda n: n >= first and n % freq == 0


def _sparse_step(text: Fields) -> Rule | None:
    """Qwen: every n-th, but for some that are named."""
    step = whole(text.get("decoder_sparse_step"))
    if not step:
        return None
    dense = set(numbers(text.get("mlp_only_layers")) or ())
    return lambda n: (n + 1) % step == 0 and n not in dense


def _llama(text: Fields) -> Rule | None:
    step = whole(text.get("interleave_moe_layer_step"))
    return (lambda n: (n + 1) % step == 0) if step else None


def _jamba_experts(text: Fields) -> Rule | None:
    period = whole(text.get("expert_layer_period"))
    offset = whole(text.get("expert_layer_offset")) or 0
    return (lambda n: n % period == offset) if period else None


def _ernie(text: Fields) -> Rule | None:
    first = whole(text.get("moe_layer_start_index"))
    if first is None:
        return None
    last = whole(text.get("moe_layer_end_index"))  # -1, no end, is no size
    step = whole(text.get("moe_layer_interval")) or 1
    return lambda n: first <= n <= (LAYERS if last is None else last) and (n + 1) % step == 0


_EXPERTS: tuple[Callable[[Fields], Rule | None], ...] = (
    _listed_experts,
    _dense_first,
    _sparse_step,
    _llama,
    _jamba_experts,
    _ernie,
)
