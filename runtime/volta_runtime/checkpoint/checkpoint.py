"""A checkpoint directory as a map from module to weight format, read from headers alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.formats import by_module, read, recognise, unrecognised
from volta_runtime.checkpoint.quantization import parse_quantization
from volta_runtime.checkpoint.safetensors import TensorInfo, read_header
from volta_runtime.checkpoint.sums import Progress, check_sums

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """An HF-style checkpoint whose headers and config agree.

    path: the directory; config: config.json; tensors: by full name;
    modules: module name to weight format row ("dense", "nvfp4-pack-quantized").
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    modules: Mapping[str, str]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read config.json and the safetensors headers and check them against each other.

    Raises CheckpointError naming the file, tensor or module that is missing, damaged,
    contradictory or in a format that is not supported.
    """
    config_file = directory / CONFIG
    config = _read_json(config_file)
    tensors = _read_tensors(directory)
    quantization = parse_quantization(config_file, config)
    modules: dict[str, str] = {}
    for module, parameters in sorted(by_module(tensors).items()):
        row = recognise(module, parameters)
        faults = read(row, parameters).faults if row else (unrecognised(module, parameters),)
        if row is None or faults:
            raise CheckpointError(f"{faults[0]}; fetch or export the checkpoint again")
        class_name = _class_name(module, parameters)
        promised = quantization.format_of(module, class_name)
        if row.name != promised:
            held = ", ".join(f"{name} {info.dtype}" for name, info in sorted(parameters.items()))
            raise CheckpointError(
                f"{config_file}: quantization_config makes module {module} ({class_name})"
                f" {promised}, but its tensors are {row.name} ({held}); config and weights are"
                " not from the same checkpoint, or config_groups/ignore is wrong"
            )
        modules[module] = row.name
    return Checkpoint(directory, config, tensors, modules)


def verify(directory: Path, progress: Progress | None = None) -> None:
    """Check every file against SHA256SUMS, then the headers against the config.

    progress gets (file name, bytes done, bytes in all). Raises CheckpointError naming the first
    bad file.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory")
    check_sums(directory, progress)
    open_checkpoint(directory)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{file}: missing; a checkpoint directory holds {CONFIG} and {WEIGHTS}"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not sound JSON: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: not a JSON object; fetch it again")
    return value


def _read_tensors(directory: Path) -> dict[str, TensorInfo]:
    """The tensors of model.safetensors, or of all shards that the index names."""
    index_file = directory / INDEX
    if not index_file.exists():
        if not (directory / WEIGHTS).exists():
            raise CheckpointError(f"{directory}: holds neither {WEIGHTS} nor {INDEX}")
        return read_header(directory / WEIGHTS)
    weight_map = _read_json(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_file}: weight_map is missing or empty; fetch it again")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index_file}: {shard!r} is not a file name in this directory")
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(weight_map.values())):
        held = read_header(directory / shard)
        listed = {name for name, file in weight_map.items() if file == shard}
        if difference := sorted(listed ^ held.keys()):
            name = difference[0]
            problem = "lists it there, but it is absent" if name in listed else "does not list it"
            raise CheckpointError(
                f"{directory / shard}: tensor {name}: {INDEX} {problem}; index and shards are not"
                " from the same checkpoint"
            )
        tensors |= held
    return tensors


def _class_name(module: str, parameters: Mapping[str, TensorInfo]) -> str:
    """The class that config targets mean: headers know no classes, so by name and rank."""
    if module.rpartition(".")[2].startswith("embed"):
        return "Embedding"
    flat = all(len(info.shape) < 2 for info in parameters.values())
    return "Norm" if flat else "Linear"
