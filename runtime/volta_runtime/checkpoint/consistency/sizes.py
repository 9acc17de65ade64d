"""Shapes against config.json: a module of another width is of another model or revision.

Only sizes that config.json tells in one number are held against the tensors, of modules whose names
mean the same in every model that has them. What a class of transformers computes in its own way
(fused projections, latent attention, convolutions) is left to the comparison with like experts.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from volta_runtime.checkpoint.architecture import Architecture, text_fields
from volta_runtime.checkpoint.architecture.shape import whole
from volta_runtime.checkpoint.contents import CONFIG, Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization.names import WRAPPERS, like, plain

_HIDDEN, _MLP, _EXPERT, _EXPERTS = "hidden_size", "intermediate_size", "expert size", "experts"
_HEADS, _KV_HEADS = "heads x head_dim", "KV heads x head_dim"
_ANY = ""
# Outputs and inputs by name: in a layer of a text model, or beside the layers.
_SIZES: Mapping[str, tuple[str, ...]] = {
    "layers.*.self_attn.q_proj": (_HEADS, _HIDDEN),
    "layers.*.self_attn.k_proj": (_KV_HEADS, _HIDDEN),
    "layers.*.self_attn.v_proj": (_KV_HEADS, _HIDDEN),
    "layers.*.self_attn.o_proj": (_HIDDEN, _HEADS),
    "layers.*.self_attn.qkv_proj": (_ANY, _HIDDEN),
    "layers.*.mlp.gate_proj": (_MLP, _HIDDEN),
    "layers.*.mlp.up_proj": (_MLP, _HIDDEN),
    "layers.*.mlp.down_proj": (_HIDDEN, _MLP),
    "layers.*.mlp.gate": (_EXPERTS, _HIDDEN),
    "layers.*.mlp.experts.*.gate_proj": (_EXPERT, _HIDDEN),
    "layers.*.mlp.experts.*.up_proj": (_EXPERT, _HIDDEN),
    "layers.*.mlp.experts.*.down_proj": (_HIDDEN, _EXPERT),
    "layers.*.block_sparse_moe.gate": (_EXPERTS, _HIDDEN),
    "layers.*.block_sparse_moe.experts.*.w1": (_EXPERT, _HIDDEN),
    "layers.*.block_sparse_moe.experts.*.w3": (_EXPERT, _HIDDEN),
    "layers.*.block_sparse_moe.experts.*.w2": (_HIDDEN, _EXPERT),
    "layers.*.input_layernorm": (_HIDDEN,),
    "layers.*.post_attention_layernorm": (_HIDDEN,),
    "gpt_neox.layers.*.attention.dense": (_HIDDEN, _HIDDEN),
    "gpt_neox.layers.*.mlp.dense_h_to_4h": (_MLP, _HIDDEN),
    "gpt_neox.layers.*.mlp.dense_4h_to_h": (_HIDDEN, _MLP),
    "embed_tokens": (_ANY, _HIDDEN),
    "norm": (_HIDDEN,),
    "lm_head": (_ANY, _HIDDEN),
    "gpt_neox.embed_in": (_ANY, _HIDDEN),
    "embed_out": (_ANY, _HIDDEN),
}
# Models whose layers have widths that no field tells in one number, or inputs of two models.
_OWN_WIDTHS = ("block_configs", "ffn_multipliers", "use_double_wide_mlp", "word_embed_proj_dim")
_DRAFT = "fc"
_HEAD_KEYS, _SIZE_KEYS = ("heads", "n_head", "groups"), ("head_dim", "kv_channels", "head_size")


def sizes(
    contents: Contents, architecture: Architecture, modules: Mapping[str, Module]
) -> Iterator[Fault]:
    """The modules of another size than config.json says, and experts unlike those beside them."""
    text = text_fields(contents.configs.get(CONFIG, {}))
    own = any(text.get(key) for key in _OWN_WIDTHS) or any(
        f"{wrapper}{_DRAFT}" in modules for wrapper in ("", *WRAPPERS)
    )
    told = {} if own else _told(text, architecture)
    experts: dict[str, Module] = {}
    for name, module in modules.items():
        short = plain(name)
        kind = like(short)
        names = _SIZES.get(kind)
        if names is None or len(module.shape) != len(names) or module.format is None:
            continue
        yield from _against(module, names, told)
        if ".experts.*." in kind:
            yield from _alike(module, experts.setdefault(_of_layer(short), module))


def _told(text: Mapping[str, Any], found: Architecture) -> dict[str, Collection[int]]:
    """What each size may be; one that is not told, or told for each layer, is left out."""

    def single(*keys: str) -> bool:
        return not any(isinstance(text.get(key), list) for key in keys)

    told: dict[str, Collection[int]] = {}
    if found.hidden_size:
        told[_HIDDEN] = {found.hidden_size}
    if found.intermediate_size and single("intermediate_size", "ffn_hidden_size"):
        told[_MLP] = {found.intermediate_size}
    if found.expert_size and single("moe_intermediate_size", "intermediate_size"):
        told[_EXPERT] = {found.expert_size}
    if found.experts and single("num_experts", "moe_num_experts", "num_local_experts"):
        told[_EXPERTS] = {found.experts}
    counts, dims = _numbers(text, _HEAD_KEYS), _numbers(text, _SIZE_KEYS)
    dims |= {found.head_dim} if found.head_dim else set()
    if found.heads and dims and not found.kv_lora_rank:
        products = {count * dim for count in counts for dim in dims}
        gated = {2 * size for size in products} if _gated(text) else set()
        told[_HEADS], told[_KV_HEADS] = products | gated, products
    return told


def _gated(text: Mapping[str, Any]) -> bool:
    """Whether q_proj makes a gate too (Qwen3-Next, whose class takes it for granted)."""
    return text.get("attn_output_gate") is True or "linear_num_value_heads" in text


def _numbers(text: Mapping[str, Any], words: Collection[str]) -> set[int]:
    """All that fields with such names hold: of some layers, or of one kind of attention."""
    found: set[int] = set()
    for key, value in text.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, words)
        elif any(word in key for word in words):
            values = value if isinstance(value, list) else [value]
            found |= {n for n in map(whole, values) if n}
    return found


def _against(
    module: Module, names: tuple[str, ...], told: Mapping[str, Collection[int]]
) -> Iterator[Fault]:
    for place, (name, size) in enumerate(zip(names, module.shape, strict=True)):
        may_be = told.get(name)
        if not may_be or size in may_be:
            continue
        what = f"{('outputs', 'inputs')[place]}" if len(names) > 1 else "values"
        expected = " or ".join(map(str, sorted(may_be)))
        info = module.weight
        text = f"has {size} {what}, and {name} of {CONFIG} makes it {expected}"
        yield Fault("tensor-set", text, info.file, info.name, expected, str(size))
        return


def _of_layer(short: str) -> str:
    """One name for the experts of a layer and their one projection."""
    before, _, after = short.partition(".experts.")
    return f"{before}.experts.*.{after.partition('.')[2]}"


def _alike(module: Module, first: Module) -> Iterator[Fault]:
    """Engines stack the experts of a layer."""
    if module.shape != first.shape:
        info = module.weight
        expected, found = str(list(first.shape)), str(list(module.shape))
        text = f"is {found}, and {first.name} is {expected}: engines stack the experts of a layer"
        yield Fault("tensor-set", text, info.file, info.name, expected, found)
