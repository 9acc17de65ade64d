"""How a model is spread over GPUs: which modules are split, along which side, and which copied."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from volta_runtime.checkpoint.architecture import Architecture

# column: by output features; row: by input features; kv: column, by KV heads, a copy each where
# there are fewer of them than ranks; qkv: a fused projection with such a part; vocab: by words;
# copy: whole on every rank.
Side = Literal["column", "row", "kv", "qkv", "vocab", "copy"]

TILE_N, TILE_K = 32, 64  # of the widest kernel's tile (1Cat-vLLM ops/nvfp4_qpn2_sm70.cu)
VOCAB_TILE = 64  # vLLM layers/vocab_parallel_embedding.py: DEFAULT_VOCAB_PADDING_SIZE

# By the last part of a module's name (vLLM model_executor/models: Column-, RowParallelLinear,
# QKVParallelLinear, VocabParallelEmbedding; GGUF: gguf-py/gguf/constants.py). What is not here is
# copied: norms, biases, router gates, MLA's latent projections.
_NAMES: Mapping[Side, str] = {
    "column": """
        q_proj gate_proj up_proj gate_up_proj q_b_proj kv_b_proj w1 w3 w13 fc1 linear_fc1 c_fc
        dense_h_to_4h in_proj in_proj_qkvz in_proj_qkv in_proj_z in_proj_ba in_proj_b in_proj_a
        conv1d x_gate g_proj wi Wi f_b_proj g_b_proj b_proj q_conv1d k_conv1d v_conv1d
        attn_q attn_q_b attn_kv_b attn_k_b attn_v_b attn_gate ffn_gate ffn_up ffn_gate_up
        ffn_gate_exps ffn_up_exps ffn_gate_up_exps ffn_gate_shexp ffn_up_shexp ssm_in ssm_conv1d
        ssm_beta_alpha ssm_ba ssm_alpha ssm_beta
    """,
    "kv": "k_proj v_proj attn_k attn_v",
    "qkv": "qkv_proj qkv query_key_value Wqkv c_attn attn_qkv W_pack",
    "row": """
        o_proj down_proj out_proj w2 fc2 linear_fc2 c_proj dense dense_4h_to_h wo proj
        attn_output ffn_down ffn_down_exps ffn_down_shexp ssm_out
    """,
    "vocab": """
        lm_head embed_out output embed_tokens wte word_embeddings embeddings tok_embeddings
        token_embd embed_tokens_per_layer per_layer_token_embd
    """,
}
_SIDES: Mapping[str, Side] = {
    name: side for side, names in _NAMES.items() for name in names.split()
}
_TOWERS = frozenset(
    {
        "audio_tower",
        "embed_vision",
        "mm",
        "mm_projector",
        "multi_modal_projector",
        "v",
        "vision_encoder",
        "vision_model",
        "vision_tower",
        "visual",
        "vit",
    }
)
_NUMBER = re.compile(r"\.(\d+)(?=\.)")
_HEAD = frozenset({"lm_head", "embed_out", "output"})
_BY_LAYER = frozenset({"embed_tokens_per_layer", "per_layer_token_embd"})  # Gemma 3n, 4


class Role(NamedTuple):
    """What a module is in its model.

    side: how it is split. layer: the number of its layer, None outside of them. part: the last of
    its name. expert: whether it is of routed experts. tower: of a vision or audio tower. mtp: of
    multi-token prediction. input, head: the embedding of tokens, and what makes logits.
    """

    side: Side
    layer: int | None
    part: str
    expert: bool = False
    tower: bool = False
    mtp: bool = False
    input: bool = False
    head: bool = False


@dataclass(frozen=True)
class Split:
    """How many GPUs share what.

    tensor: ranks that split each layer; expert: ranks that share the experts out whole; stages:
    groups of these ranks that have some of the layers each. by_layer: each GPU is such a stage, as
    llama.cpp has it; `tensor` then counts the GPUs.
    """

    tensor: int = 1
    expert: int = 1
    by_layer: bool = False
    stages: int = 1

    @property
    def ranks(self) -> int:
        """GPUs that split each layer."""
        return 1 if self.by_layer else self.tensor

    @property
    def depth(self) -> int:
        """Groups of GPUs that have some of the layers each."""
        return self.tensor if self.by_layer else self.stages

    @property
    def width(self) -> int:
        """GPUs of one such group."""
        return 1 if self.by_layer else max(self.tensor, self.expert)

    @property
    def gpus(self) -> int:
        """How many GPUs there are in all."""
        return self.width * self.depth

    @property
    def within_expert(self) -> int:
        """Ranks that split one expert: all of them without expert parallelism."""
        return 1 if self.by_layer else max(1, self.width // self.expert)

    @property
    def replicas(self) -> int:
        """How often the layers beside the experts stand there, each for its share of requests."""
        return max(1, self.width // self.ranks)


def role_of(name: str, architecture: Architecture) -> Role:
    """Return what the module of this name is."""
    number = _NUMBER.search(name)
    layer = int(number[1]) if number and len(number[1]) < 6 else None
    return _role(_NUMBER.sub("", name), layer, len(architecture.layers))


@lru_cache(maxsize=1 << 14)
def _role(name: str, layer: int | None, layers: int) -> Role:
    """name: without the numbers of layers and experts; layer: the first of them."""
    words = name.split(".")
    last = words[-1]
    side = _SIDES.get(last, "copy")
    tower = not _TOWERS.isdisjoint(words)
    mtp = "mtp" in words or "nextn" in words
    beyond = layer is not None and 0 < layers <= layer
    return Role(
        side="copy" if tower and side == "vocab" else side,
        layer=None if tower or mtp or beyond else layer,
        part=last,
        expert="experts" in words or last.endswith("_exps"),
        tower=tower,
        mtp=mtp or (beyond and not tower),
        input=side == "vocab" and last not in {*_HEAD, *_BY_LAYER} and not tower,
        head=last in _HEAD and not tower,
    )


def local(shape: Sequence[int], role: Role, split: Split, architecture: Architecture) -> list[int]:
    """Return the shape that the fullest rank holds, unpadded; experts in front stay in front."""
    front, (n, k) = matrix(shape, role)
    ranks = split.within_expert if role.expert else split.ranks
    if front and not split.by_layer:
        front[0] = _up(front[0], split.expert)
    if role.side in ("column", "vocab"):
        n = _up(n, ranks)
    elif role.side == "row" and len(shape) > 1:
        k = _up(k, ranks)
    elif role.side == "kv":
        n = _up(n, min(ranks, architecture.kv_heads or ranks))
    elif role.side == "qkv":
        n = _fused(n, ranks, architecture)
    return [*front, n, k]


def matrix(shape: Sequence[int], role: Role) -> tuple[list[int], tuple[int, int]]:
    """Return how many experts are stacked, if any, and a weight's outputs and inputs."""
    if role.expert and len(shape) > 2:
        return [math.prod(shape[:-2])], (shape[-2], shape[-1])
    return [], (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def _fused(n: int, ranks: int, architecture: Architecture) -> int:
    """Of a fused q, k and v the queries are split, and the rest as far as it goes."""
    heads, kv = architecture.heads or 0, architecture.kv_heads or 0
    if not heads or not kv or kv >= ranks:
        return _up(n, ranks)
    one = n // (heads + 2 * kv)
    return _up(heads * one, ranks) + 2 * one


def _up(size: int, parts: int) -> int:
    return -(-size // parts)


def padded(size: int, tile: int) -> int:
    """Return the size in whole tiles."""
    return _up(size, tile) * tile
