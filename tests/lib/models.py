"""Models for tests, of any size and no bytes: modules by the names that checkpoints give them."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from checkpoints import Spec

from volta_doctor.catalog.engines import Engine
from volta_doctor.preflight.subject import Cards
from volta_doctor.sizing.memory import MemoryPlan, plan_of
from volta_doctor.sizing.split import Split
from volta_doctor.sizing.weights import weights_of
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.architecture import Architecture, Layer
from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.formats import BY_NAME
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization import Quantization
from volta_runtime.checkpoint.safetensors import tensor_bytes
from volta_runtime.checkpoint.tensors import TensorInfo

Shapes = dict[str, tuple[int, ...]]


def shapes(a: Architecture, *, gated: bool = False, bias: bool = False, norms: int = 2) -> Shapes:
    """The shapes of a model's matrices and norms.

    gated: queries are twice as wide (Qwen3-Next). bias: of q, k and v (Qwen2). norms: a layer's.
    """
    found: Shapes = {"model.embed_tokens": (a.vocab_size, a.hidden_size)}
    for number, layer in enumerate(a.layers):
        prefix = f"model.layers.{number}"
        found |= {f"{prefix}.norm_{n}": (a.hidden_size,) for n in range(norms)}
        mixer = _delta_net if layer.kind == "linear" else _mla if a.kv_lora_rank else _attention
        mixed = mixer(a, layer, gated, bias)
        found |= {f"{prefix}.{name}": shape for name, shape in mixed.items()}
        found |= {f"{prefix}.mlp.{name}": shape for name, shape in _mlp(a, layer).items()}
    found["model.norm"] = (a.hidden_size,)
    if not a.tied:
        found["lm_head"] = (a.vocab_size, a.hidden_size)
    return found


def _attention(a: Architecture, layer: Layer, gated: bool, bias: bool) -> Shapes:
    dim = layer.head_dim or a.head_dim
    kv_heads = a.kv_heads if layer.kv_heads is None else layer.kv_heads
    q, kv, h = a.heads * dim, kv_heads * dim, a.hidden_size
    sizes = {"q_proj": q * (1 + gated), "k_proj": kv, "v_proj": kv}
    found: Shapes = {f"self_attn.{name}": (size, h) for name, size in sizes.items()}
    found["self_attn.o_proj"] = (h, q)
    if bias:
        found |= {f"self_attn.{name}_bias": (size,) for name, size in sizes.items()}
    return found


def _mla(a: Architecture, layer: Layer, gated: bool, bias: bool) -> Shapes:
    h, heads = a.hidden_size, a.heads
    query = a.qk_nope_head_dim + a.qk_rope_head_dim
    return {
        "self_attn.q_a_proj": (a.q_lora_rank, h),
        "self_attn.q_b_proj": (heads * query, a.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa": (a.kv_lora_rank + a.qk_rope_head_dim, h),
        "self_attn.kv_b_proj": (heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank),
        "self_attn.o_proj": (h, heads * a.v_head_dim),
        "self_attn.q_a_layernorm": (a.q_lora_rank,),
        "self_attn.kv_a_layernorm": (a.kv_lora_rank,),
    }


def _delta_net(a: Architecture, layer: Layer, gated: bool, bias: bool) -> Shapes:
    h, heads = a.hidden_size, a.linear_value_heads
    keys, values = a.linear_key_heads * a.linear_key_head_dim, heads * a.linear_value_head_dim
    return {
        "linear_attn.in_proj_qkv": (2 * keys + values, h),
        "linear_attn.in_proj_z": (values, h),
        "linear_attn.in_proj_b": (heads, h),
        "linear_attn.in_proj_a": (heads, h),
        "linear_attn.conv1d": (2 * keys + values, 1, a.linear_conv_kernel),
        "linear_attn.out_proj": (h, values),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm": (a.linear_value_head_dim,),
    }


def _mlp(a: Architecture, layer: Layer) -> Shapes:
    h = a.hidden_size

    def gated(size: int, prefix: str = "") -> Shapes:
        names = {"gate_proj": (size, h), "up_proj": (size, h), "down_proj": (h, size)}
        return {f"{prefix}{name}": shape for name, shape in names.items()}

    if not layer.experts:
        return gated(a.intermediate_size)
    found: Shapes = {"gate": (layer.experts, h)}
    for number in range(layer.experts):
        found |= gated(a.expert_size, f"experts.{number}.")
    if a.shared_experts:
        found |= gated(a.shared_experts * a.expert_size, "shared_experts.")
    return found


def stored(
    names: Mapping[str, tuple[int, ...]], format_of: Callable[[str, tuple[int, ...]], str]
) -> dict[str, Spec]:
    """Tensors, for checkpoints.write, of modules that are each in a format; (dtype, shape)."""
    tensors: dict[str, Spec] = {}
    for name, shape in names.items():
        row = BY_NAME[format_of(name, shape)]
        dtypes = {parameter.name: parameter.dtypes[0] for parameter in row.parameters}
        for parameter, held in row.stored(shape).items():
            tensors[f"{name}.{parameter}"] = (dtypes[parameter], held)
    return tensors


def modules(
    names: Mapping[str, tuple[int, ...]], format_of: Callable[[str, tuple[int, ...]], str]
) -> dict[str, Module]:
    """The modules that are read of such tensors."""
    found = {}
    for name, shape in names.items():
        row = BY_NAME[format_of(name, shape)]
        tensors, position = {}, 0
        for full, (dtype, held) in stored({name: shape}, format_of).items():
            ggml = row.container == "gguf"
            size = int(math.prod(held) * row.bits / 8) if ggml else tensor_bytes(dtype, held)
            end = position + size
            info = TensorInfo(full, dtype, held, Path("model.safetensors"), (position, end))
            tensors[full.removeprefix(f"{name}.")], position = info, end
        found[name] = Module(name, row, shape, row.group, tensors, None)
    return found


def linear_in(row: str, other: str = "dense") -> Callable[[str, tuple[int, ...]], str]:
    """All matrices of layers in this format, and the rest in another."""

    def format_of(name: str, shape: tuple[int, ...]) -> str:
        matrix = len(shape) == 2 and ".layers." in name and not name.endswith(".gate")
        return row if matrix else other

    return format_of


def checkpoint(
    architecture: Architecture,
    names: Mapping[str, tuple[int, ...]],
    format_of: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "dense",
) -> Checkpoint:
    """A sound checkpoint of such modules, of which no file exists."""
    path = Path("/models/x")
    return Checkpoint(
        path=path,
        contents=Contents(path, "safetensors"),
        config={},
        quantization=Quantization(),
        modules=modules(names, format_of),
        architecture=architecture,
        faults=(),
    )


def memory_plan(
    model: Checkpoint,
    engine: Engine,
    cards: Cards,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    **how: Any,
) -> MemoryPlan:
    """What one way to serve a model takes, as plan_of tells."""
    split = Split(tensor_parallel, expert_parallel, engine.shards == "layer")
    return plan_of(weights_of(model), engine, cards, split, **how)
