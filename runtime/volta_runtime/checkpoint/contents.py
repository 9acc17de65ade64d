"""What lies in a checkpoint's directory, read without judging what it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.tensors import TensorInfo


@dataclass(frozen=True)
class FileInfo:
    """A file of the directory, by its name in it, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Contents:
    """A checkpoint as it lies on disk.

    path: the directory, or the GGUF file. kind: what its weights are in; "index" where only the
        index of safetensors is there and no shard, so that names are known and shapes are not.
    files: all files of it, sorted. configs: the JSON objects of config.json,
        generation_config.json, hf_quant_config.json, tokenizer_config.json and their like, by file
        name, those that are there and sound. tensors: by name, from all sound headers. index:
        tensor to shard, as model.safetensors.index.json says; total_size: bytes of all tensors, as
        it says. metadata: GGUF's, without its long arrays.
    faults: what is wrong with the files themselves.
    """

    path: Path
    kind: Literal["safetensors", "gguf", "pickle", "index", "none"]
    files: tuple[FileInfo, ...] = ()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    index: Mapping[str, str] = field(default_factory=dict)
    total_size: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
