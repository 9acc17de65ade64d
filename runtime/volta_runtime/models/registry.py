"""Architecture name of config.json → the class that runs it. A new model is a row here."""

from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from volta_runtime.checkpoint import Checkpoint
from volta_runtime.errors import ModelError
from volta_runtime.layers import KVCache, Segment
from volta_runtime.models.weights import Weights

ARCHITECTURES = {
    "LlamaForCausalLM": "volta_runtime.models.llama:Llama",
}


class Model(Protocol):
    """What the engine needs of a model."""

    device: torch.device
    vocab_size: int
    max_len: int

    def make_cache(self, slots: int) -> KVCache:
        """A KV cache for `slots` sequences of up to `max_len` tokens."""
        ...

    def forward(self, tokens: Tensor, segments: list[Segment]) -> Tensor:
        """Run tokens (int64 [T], the segments' tokens end to end) and extend their caches.

        Returns float32 logits [len(segments), vocab_size] of each segment's last token.
        """
        ...


def load_model(checkpoint: Checkpoint, device: torch.device, max_len: int | None = None) -> Model:
    """Load a checkpoint's model; `max_len` bounds the context, None means the model's own.

    Raises ModelError or CheckpointError before anything is allocated when the architecture, an
    option of it or a tensor is unsupported, missing or mis-shaped.
    """
    names = checkpoint.config.get("architectures")
    listed = names if isinstance(names, list) else []
    target = next((target for name, target in ARCHITECTURES.items() if name in listed), None)
    if target is None:
        raise ModelError(
            f"{checkpoint.path}/config.json: architectures is {names!r}, which is not supported; "
            f"supported: {list(ARCHITECTURES)}"
        )
    module, _, name = target.partition(":")
    model: Model = getattr(import_module(module), name).load(
        checkpoint, Weights(checkpoint, device), max_len
    )
    return model
