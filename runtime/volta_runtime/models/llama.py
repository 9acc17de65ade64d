"""LlamaForCausalLM: RMSNorm, rotary embedding, grouped attention, SiLU-gated MLP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from volta_runtime.checkpoint import Checkpoint
from volta_runtime.errors import ModelError
from volta_runtime.layers import (
    Attention,
    HalfLinear,
    KVCache,
    Linear,
    RMSNorm,
    Rope,
    Segment,
    activation_dtype,
)
from volta_runtime.models.weights import Shape, Weights


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of config.json that shape the model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any], where: str) -> "LlamaConfig":
        """Read config.json; raises ModelError naming a field that is missing or unsupported."""
        _refuse_unsupported(config, where)
        required = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        )
        for field in required:
            if type(config.get(field)) is not int or config[field] < 1:
                raise ModelError(
                    f"{where}: {field} must be a positive integer, not {config.get(field)!r}"
                )
        heads = config["num_attention_heads"]
        parsed = cls(
            **{field: config[field] for field in required},
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=_rope(config).get("rope_theta", 10000.0),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
        )
        if heads % parsed.num_key_value_heads:
            raise ModelError(
                f"{where}: num_attention_heads {heads} is not a multiple of "
                f"num_key_value_heads {parsed.num_key_value_heads}"
            )
        return parsed


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings: top-level fields, or transformers 5's `rope_parameters`."""
    return {**config, **(config.get("rope_parameters") or {})}


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type != "default":
        raise ModelError(f"{where}: rope scaling of type {rope_type!r} is not supported yet")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(
            f"{where}: hidden_act {config['hidden_act']!r} is not supported; supported: silu"
        )
    for field in ("attention_bias", "mlp_bias"):
        if config.get(field):
            raise ModelError(f"{where}: {field} is true, which is not supported")


def _shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Every module with a weight and that weight's logical shape, [out, in] for linear ones."""
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, Shape] = {
        "model.embed_tokens": (c.vocab_size, c.hidden_size),
        "model.norm": (c.hidden_size,),
    }
    if not c.tie_word_embeddings:
        shapes["lm_head"] = (c.vocab_size, c.hidden_size)
    for i in range(c.num_hidden_layers):
        layer = {
            "input_layernorm": (c.hidden_size,),
            "self_attn.q_proj": (q, c.hidden_size),
            "self_attn.k_proj": (kv, c.hidden_size),
            "self_attn.v_proj": (kv, c.hidden_size),
            "self_attn.o_proj": (c.hidden_size, q),
            "post_attention_layernorm": (c.hidden_size,),
            "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
            "mlp.up_proj": (c.intermediate_size, c.hidden_size),
            "mlp.down_proj": (c.hidden_size, c.intermediate_size),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


@dataclass(frozen=True)
class Layer:
    """One decoder block."""

    attention_norm: RMSNorm
    qkv: Linear
    output: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear

    @classmethod
    def load(cls, weights: Weights, prefix: str, eps: float) -> "Layer":
        """Read the block whose modules' names begin with `prefix`."""
        dtype = activation_dtype(weights.device)
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return cls(
            attention_norm=RMSNorm(weights.vector(f"{prefix}.input_layernorm"), eps, dtype),
            qkv=weights.linear(*(f"{attention}.{name}_proj" for name in "qkv")),
            output=weights.linear(f"{attention}.o_proj"),
            mlp_norm=RMSNorm(weights.vector(f"{prefix}.post_attention_layernorm"), eps, dtype),
            gate_up=weights.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=weights.linear(f"{mlp}.down_proj"),
        )


class Llama:
    """The model on one device; see registry.Model for the contract."""

    def __init__(
        self,
        config: LlamaConfig,
        max_len: int,
        embedding: Tensor,
        layers: list[Layer],
        norm: RMSNorm,
        head: Linear,
    ) -> None:
        self.device = embedding.device
        self.vocab_size = config.vocab_size
        self.max_len = max_len
        self._config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rope = Rope(config.head_dim, config.rope_theta, max_len, self.device)

    @classmethod
    def load(cls, checkpoint: Checkpoint, weights: Weights, max_len: int | None) -> "Llama":
        """See registry.load_model."""
        config = LlamaConfig.parse(checkpoint.config, f"{checkpoint.path}/config.json")
        limit = config.max_position_embeddings
        if max_len is not None and max_len > limit:
            raise ModelError(
                f"--max-model-len {max_len} is beyond the model's max_position_embeddings {limit}"
            )
        weights.check(_shapes(config))
        embedding = weights.half("model.embed_tokens")
        return cls(
            config,
            max_len or limit,
            embedding,
            [
                Layer.load(weights, f"model.layers.{i}", config.rms_norm_eps)
                for i in range(config.num_hidden_layers)
            ],
            RMSNorm(
                weights.vector("model.norm"), config.rms_norm_eps, activation_dtype(weights.device)
            ),
            HalfLinear(embedding) if config.tie_word_embeddings else weights.linear("lm_head"),
        )

    def make_cache(self, slots: int) -> KVCache:
        """See registry.Model."""
        return KVCache(
            slots=slots,
            layers=self._config.num_hidden_layers,
            kv_heads=self._config.num_key_value_heads,
            max_len=self.max_len,
            head_dim=self._config.head_dim,
            device=self.device,
        )

    def forward(self, tokens: Tensor, segments: list[Segment]) -> Tensor:
        """See registry.Model."""
        c = self._config
        heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
        hidden = F.embedding(tokens, self._embedding).float()
        cos, sin = self._rope.at([(s.start, s.start + s.length) for s in segments])
        attention = Attention(
            segments, heads // kv_heads, activation_dtype(self.device), self.device
        )
        for i, layer in enumerate(self._layers):
            qkv = layer.qkv(layer.attention_norm(hidden)).view(-1, heads + 2 * kv_heads, c.head_dim)
            qk = self._rope.apply(qkv[:, : heads + kv_heads], cos, sin)
            mixed = attention(i, qk[:, :heads], qk[:, heads:], qkv[:, heads + kv_heads :])
            hidden += layer.output(mixed)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, -1)
            hidden += layer.down(F.silu(gate).mul_(up))
        for segment in segments:
            segment.cache.length += segment.length
        return self._head(self._norm(hidden[attention.last_rows])).float()
