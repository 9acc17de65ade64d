"""What lies in a checkpoint's directory, read without judging what it means."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Literal

from volta_runtime.checkpoint import pickles
from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.faults import Fault, few
from volta_runtime.checkpoint.files import LFS_BYTES, lfs_fault, opened, read_json
from volta_runtime.checkpoint.gguf import Gguf, read_parts
from volta_runtime.checkpoint.index import INDEX, read_shards
from volta_runtime.checkpoint.pickles import pickle_faults
from volta_runtime.checkpoint.revisions import revision_faults
from volta_runtime.checkpoint.safetensors import read_header
from volta_runtime.checkpoint.tensors import TensorInfo

CONFIG = "config.json"
ADAPTER = "adapter_config.json"  # of PEFT, beside adapter_model.safetensors
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

_PROJECTOR = "mmproj"  # the part of a vision model that llama.cpp keeps in a file of its own

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
        it says. metadata: GGUF's, where a gguf.LongArray stands for a long one.
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
    """Read what is at a path: a directory, or a file with weights.

    What is wrong in it becomes a fault. Raises CheckpointError where there is no such path.
    """
    try:
        directory = path if S_ISDIR(path.stat().st_mode) else path.parent
        names = {entry.name for entry in os.scandir(directory)}
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if directory == path:
        return _read_directory(path, names)
    if path.suffix == ".safetensors":
        header = read_header(path)
        files = _sizes(directory, {path.name})
        return Contents(path, "safetensors", files, tensors=header.tensors, faults=header.faults)
    if path.suffix in pickles.SUFFIXES:
        faults = tuple(pickle_faults(directory, {path.name}, used=True))
        return Contents(path, "pickle", _sizes(directory, {path.name}), faults=faults)
    return _of_gguf(path, read_parts(path, names))


def _read_directory(directory: Path, names: set[str]) -> Contents:
    files = _sizes(directory, names)
    faults = [fault for file in files if (fault := _pointer(directory / file.name, file.size))]
    configs = _read_configs(directory, names, faults)
    shards = read_shards(directory, names)
    ggufs = sorted(n for n in names if n.endswith(".gguf") and not n.startswith(_PROJECTOR))
    pickled = {name for name in names if name.endswith(pickles.SUFFIXES)}
    if ggufs and not shards.files and not shards.index:
        gguf = _of_gguf(directory / ggufs[0], read_parts(directory / ggufs[0], names))
        others = set(ggufs) - {file.name for file in gguf.files}
        if others:
            words = (
                f"of {len(others) + 1} GGUF models {ggufs[0]} is judged; name another to have it"
            )
            fault = Fault("gguf-header", words, directory, found=few(ggufs), level="warn")
            faults.append(fault)
        return replace(
            gguf, path=directory, files=files, configs=configs, faults=(*faults, *gguf.faults)
        )
    kind: Kind = "none"
    if shards.files:
        kind = "safetensors"
    elif pickled:
        kind = "pickle"
    elif shards.index:
        kind = "index"
    faults += shards.faults
    faults += pickle_faults(directory, pickled, used=kind == "pickle")
    of_weights = {*shards.files, *pickled, INDEX, CONFIG}
    faults += revision_faults(directory, names, of_weights, {*shards.index.values()})
    if kind != "none" and CONFIG not in names:
        faults.append(_without_config(directory, names))
    return Contents(
        directory,
        kind,
        files,
        configs,
        shards.tensors,
        shards.index,
        shards.total_size,
        faults=tuple(dict.fromkeys(faults)),  # a pointer is seen by each who opens it
    )


def _without_config(directory: Path, names: Collection[str]) -> Fault:
    """The fault of weights without a config.json: an adapter has none, since it is no model."""
    if ADAPTER not in names:
        words = "missing: it says what the tensors are of"
        return Fault("config-json", words, directory / CONFIG, expected="a JSON object")
    held, _ = read_json(directory / ADAPTER, "config-json")
    fields = held or {}
    kind, base = (fields.get(key) for key in ("peft_type", "base_model_name_or_path"))
    name = f"a {kind[:40]} adapter" if isinstance(kind, str) else "an adapter (PEFT)"
    of = f" of {base[:100]}" if isinstance(base, str) else ""
    words = (
        f"this is {name}{of}, and no model: judge that model, and serve it with this adapter"
        " (vLLM: --enable-lora --lora-modules) or with the adapter merged into it"
    )
    return Fault("config-json", words, directory / ADAPTER, "", CONFIG, ADAPTER)


def _of_gguf(file: Path, gguf: Gguf) -> Contents:
    files = _sizes(file.parent, {part.name for part in gguf.files})
    return Contents(
        file, "gguf", files, tensors=gguf.tensors, metadata=gguf.metadata, faults=gguf.faults
    )


def _sizes(directory: Path, names: Collection[str]) -> tuple[FileInfo, ...]:
    found = []
    for name in sorted(names):
        try:
            status = (directory / name).stat()
        except OSError:  # a link that leads nowhere: who needs the file says so
            continue
        if S_ISREG(status.st_mode):
            found.append(FileInfo(name, status.st_size))
    return tuple(found)


def _pointer(file: Path, size: int) -> Fault | None:
    """The fault of a file in whose place a Git LFS pointer lies."""
    if size > LFS_BYTES:
        return None
    try:
        with opened(file) as (stream, size):
            return lfs_fault(file, stream.read(LFS_BYTES), size)
    except OSError:
        return None


def _read_configs(
    directory: Path, names: Collection[str], faults: list[Fault]
) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name in CONFIGS:
        if name in names:
            config, fault = read_json(directory / name, "config-json")
            if config is not None:
                found[name] = config
            if fault:
                faults.append(fault)
    return found
