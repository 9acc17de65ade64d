"""Which matrices and sizes to measure: those of models that people run, and a curve over sizes."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """What a config says of a model; a figure that is not known is 0, and what needs it left out.

    gdn: rows of the fused input projection of gated delta nets, of all ranks together. source:
    where the figures are from, and which are missing.
    """

    name: str
    hidden: int
    vocab: int
    source: str
    intermediate: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    experts: int = 0
    top_k: int = 0
    moe_intermediate: int = 0
    gdn: int = 0


@dataclass(frozen=True)
class Matrix:
    """A matrix [n, k] of a model on one rank; of count experts where there are several."""

    model: str
    name: str
    n: int
    k: int
    count: int = 1

    @property
    def shape(self) -> str:
        """As tables show it."""
        return f"{self.n}x{self.k}"


QWEN_7B = Model(
    "Qwen2.5-7B", 3584, 152064, "its config.json",
    intermediate=18944, heads=28, kv_heads=4, head_dim=128,
)  # fmt: skip
QWEN_MOE = Model(
    "Qwen3-30B-A3B", 2048, 151936, "its config.json",
    heads=32, kv_heads=4, head_dim=128, experts=128, top_k=8, moe_intermediate=768,
)  # fmt: skip
QWEN_HYBRID = Model(
    "Qwen3.8-27B", 5120, 248320,
    "vllm#52540; gdn of 1Cat-vLLM#445, #517 (8240 rows a rank at TP 2, 4120 at TP 4); heads and the"
    " output projections are not known and left out",
    intermediate=17408, gdn=16480,
)  # fmt: skip
LLAMA_70B = Model(
    "Llama-3-70B", 8192, 128256, "its config.json",
    intermediate=28672, heads=64, kv_heads=8, head_dim=128,
)  # fmt: skip

# Each with its number of ranks.
MODELS = (
    (QWEN_7B, 1),
    (QWEN_MOE, 1),
    (QWEN_HYBRID, 1),
    (QWEN_HYBRID, 2),
    (QWEN_HYBRID, 4),
    (LLAMA_70B, 2),
)
QUICK_MODELS = MODELS[:1]

REFERENCE = (
    Matrix("reference", "down", 4096, 14336),
    Matrix("reference", "lm_head", 152064, 3584),
)
CURVE = tuple(Matrix("curve", "", 1 << log, 4096) for log in range(10, 17))


def label(model: Model, ranks: int) -> str:
    """A model on one of its ranks."""
    return model.name if ranks == 1 else f"{model.name} TP {ranks}"


def matrices(model: Model, ranks: int) -> Iterator[Matrix]:
    """The dense matrices of a rank: rows are shared out, or columns where rows are hidden."""
    name, hidden = label(model, ranks), model.hidden
    attention = model.heads * model.head_dim // ranks
    qkv = attention + 2 * model.kv_heads * model.head_dim // ranks
    intermediate = model.intermediate // ranks
    sizes = {
        "qkv": (qkv, hidden),
        "o": (hidden, attention),
        "gdn": (model.gdn // ranks, hidden),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
        "lm_head": (model.vocab // ranks, hidden),
    }
    for matrix, (n, k) in sizes.items():
        if n and k:
            yield Matrix(name, matrix, n, k)


def expert_matrices(model: Model) -> Iterator[Matrix]:
    """The matrices of a model's experts, on one rank."""
    if model.experts:
        wide, hidden = model.moe_intermediate, model.hidden
        yield Matrix(model.name, "gate_up", 2 * wide, hidden, model.experts)
        yield Matrix(model.name, "down", hidden, wide, model.experts)
