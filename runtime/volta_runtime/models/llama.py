"""LlamaForCausalLM: RMSNorm, rotary embedding, grouped attention, SiLU-gated MLP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch.nn.functional as F  # noqa: N812
from msgspec import Meta, Struct
from torch import Tensor

from volta_runtime.checkpoint import Checkpoint
from volta_runtime.errors import ModelError
from volta_runtime.layers import (
    Attention,
    Gated,
    HalfLinear,
    KVCache,
    Linear,
    RMSNorm,
    Rope,
    Segment,
    activation_dtype,
    cpu_threads,
)
from volta_runtime.models.weights import Shape, Weights

Size = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


class RopeSettings(Struct, frozen=True):
    """`rope_scaling`, or transformers 5's `rope_parameters`."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    partial_rotary_factor: Positive | None = None


class LlamaConfig(Struct, frozen=True):
    """The fields of config.json that shape the model."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    max_position_embeddings: Size
    num_key_value_heads: Size = 0  # as many as num_attention_heads
    head_dim: Size = 0  # hidden_size / num_attention_heads
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 10000.0
    rope_scaling: RopeSettings = RopeSettings()
    rope_parameters: RopeSettings = RopeSettings()
    partial_rotary_factor: Positive = 1.0
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def parse(cls, config: Mapping[str, Any], where: str) -> "LlamaConfig":
        """Read config.json; raises ModelError naming a field that is missing or unsupported."""
        try:
            # null means the default, as it does to transformers.
            c = msgspec.convert({k: v for k, v in config.items() if v is not None}, cls)
        except msgspec.ValidationError as error:
            raise ModelError(f"{where}: {str(error).replace('$.', '')}") from None
        heads, rope = c.num_attention_heads, c.rope_parameters
        c = msgspec.structs.replace(
            c,
            num_key_value_heads=c.num_key_value_heads or heads,
            head_dim=c.head_dim or c.hidden_size // heads,
            rope_theta=rope.rope_theta or c.rope_theta,
            partial_rotary_factor=rope.partial_rotary_factor or c.partial_rotary_factor,
        )
        c._refuse_unsupported(where)
        return c

    def _refuse_unsupported(self, where: str) -> None:
        scalings = (self.rope_scaling, self.rope_parameters)
        rope_types = {s.rope_type or s.type or "default" for s in scalings} - {"default"}
        for wrong, reason in (
            (
                self.num_attention_heads % self.num_key_value_heads,
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}",
            ),
            (self.head_dim % 2, f"head_dim {self.head_dim} is odd, so it cannot be rotated"),
            (
                rope_types,
                f"rope scaling of type {', '.join(rope_types)} is not supported by this version",
            ),
            (
                self.partial_rotary_factor != 1,
                f"partial_rotary_factor {self.partial_rotary_factor} is unsupported; supported: 1",
            ),
            (
                self.hidden_act != "silu",
                f"hidden_act {self.hidden_act!r} is not supported; supported: silu",
            ),
            (self.attention_bias, "attention_bias is true, which is not supported"),
            (self.mlp_bias, "mlp_bias is true, which is not supported"),
        ):
            if wrong:
                raise ModelError(f"{where}: {reason}")


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
    gate_up: Gated
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
            gate_up=weights.gated(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
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

    @cpu_threads(1)
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
            hidden += layer.down(layer.gate_up(layer.mlp_norm(hidden)))
        for segment in segments:
            segment.cache.length += segment.length
        return self._head(self._norm(hidden[attention.last_rows])).float()
