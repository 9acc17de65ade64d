"""The shape of a model, from config.json or a GGUF file's metadata, whatever names they use.

A dialect of config.json is a row in config.py, a way to tell the kinds of layers one in layers.py,
and GGUF's keys are in gguf.py.
"""

from dataclasses import replace

from volta_runtime.checkpoint.architecture.config import from_config, text_fields
from volta_runtime.checkpoint.architecture.gguf import from_gguf
from volta_runtime.checkpoint.architecture.shape import Architecture, Layer, LayerKind
from volta_runtime.checkpoint.contents import Contents

__all__ = [
    "Architecture",
    "Layer",
    "LayerKind",
    "from_config",
    "from_gguf",
    "read_architecture",
    "text_fields",
]


def read_architecture(contents: Contents) -> Architecture:
    """Return what a checkpoint tells of its model; whatever it does not tell soundly is None."""
    if contents.kind != "gguf":
        return from_config(contents.configs.get("config.json", {}))
    found = from_gguf(contents.metadata)
    tensors = contents.tensors
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        return found
    return replace(
        found,
        vocab_size=embedding.shape[0] if len(embedding.shape) == 2 else found.vocab_size,
        tied="output.weight" not in tensors,
    )
