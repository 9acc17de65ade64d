"""What lies in a checkpoint's directory, read without judging what it means."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.files import read_json
from volta_runtime.checkpoint.index import read_shards
from volta_runtime.checkpoint.tensors import TensorInfo

CONFIG = "config.json"
# The JSON objects that say how a model is made, quantised and talked to.
CONFIGS = (
    CONFIG,
    "generation_config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)

Kind = Literal["safetensors", "gguf", "pickle", "index", "none"]


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
    kind: Kind
    files: tuple[FileInfo, ...] = ()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    index: Mapping[str, str] = field(default_factory=dict)
    total_size: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def read_contents(path: Path) -> Contents:
    """Read what is at a path: a directory.

    What is wrong in it becomes a fault. Raises CheckpointError where there is no such path.
    """
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    files = tuple(FileInfo(e.name, e.stat().st_size) for e in entries if e.is_file())
    faults: list[Fault] = []
    configs = _read_configs(path, {entry.name for entry in entries}, faults)
    shards = read_shards(path, {entry.name for entry in entries})
    kind: Kind = "safetensors" if shards.tensors else "index" if shards.index else "none"
    return Contents(
        path,
        kind,
        files,
        configs,
        shards.tensors,
        shards.index,
        shards.total_size,
        faults=(*faults, *shards.faults),
    )


def _read_configs(
    directory: Path, names: set[str], faults: list[Fault]
) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name in CONFIGS:
        if name in names:
            config, fault = read_json(directory / name, "config-json")
            if config is not None:
                found[name] = config
            if fault:
                faults.append(fault)
    if CONFIG not in names:
        words = "missing: it tells what the tensors are of"
        faults.append(Fault("config-json", words, directory / CONFIG, expected="a JSON object"))
    return found
