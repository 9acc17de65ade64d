"""The `checkpoint` section: the sizes of the models that servers load, from their headers alone."""

import json
from pathlib import Path
from typing import Any

import msgspec

from volta_doctor.facts import serve
from volta_doctor.facts.checkpoint import gguf
from volta_doctor.facts.checkpoint.shape import of_config as shape_of
from volta_doctor.facts.serve import Server
from volta_doctor.probe import CannotLook, Probe

__all__ = ["CheckpointFacts", "CheckpointsFacts", "collect", "shape_of"]


class CheckpointFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model of one server; where it cannot be read, `problem` says why.

    `files` counts its weight files, sizes are in bytes. The other fields are those of config.json,
    of its text_config where it has one, or of a GGUF file's metadata; `problem` may also say why
    these are missing. `full_layers` keep all keys and values, `sliding_layers` those of the last
    `sliding_window` tokens; other layers keep none. With a `kv_lora_rank` the model keeps that many
    values and `qk_rope_head_dim` more per token and layer, in place of keys and values by head.
    """

    server: str
    path: str | None = None
    problem: str = ""
    format: str | None = None
    files: int = 0
    weight_bytes: int | None = None
    largest_shard_bytes: int | None = None
    model_type: str | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None
    max_position_embeddings: int | None = None
    torch_dtype: str | None = None
    quant_method: str | None = None
    full_layers: int | None = None
    sliding_layers: int | None = None
    sliding_window: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None


class CheckpointsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The models, one for each server that was told one."""

    models: list[CheckpointFacts] = []

    def of(self, server: str) -> CheckpointFacts | None:
        """Return the model of a server by the server's name."""
        return next((model for model in self.models if model.server == server), None)


def read_json(probe: Probe, path: str) -> dict[str, Any]:
    """Return a JSON object. Raises CannotLook naming the file."""
    try:
        value = json.loads(probe.text(path))
    except (ValueError, RecursionError) as error:
        raise CannotLook(f"{path}: not sound JSON: {error}") from error
    if not isinstance(value, dict):
        raise CannotLook(f"{path}: not a JSON object")
    return value


def weight_files(probe: Probe, directory: str) -> list[str]:
    """Return the paths of the shards. Raises CannotLook where there is none, or one is missing."""
    if not probe.exists(directory):
        raise CannotLook(f"{directory}: no such directory")
    index = f"{directory}/model.safetensors.index.json"
    if probe.exists(index):
        shards = read_json(probe, index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CannotLook(f"{index}: weight_map is missing or empty")
        names = sorted({str(name) for name in shards.values()})
    else:
        held = probe.names(directory)
        names = [name for name in held if name.endswith(".safetensors")]
        if "model.safetensors" in names:  # others beside it are adapters or copies
            names = ["model.safetensors"]
        names = names or [name for name in held if name.endswith(".gguf")]
    if not names:
        raise CannotLook(f"{directory}: holds no safetensors or GGUF file")
    return [f"{directory}/{name}" for name in names]


def safetensors_bytes(probe: Probe, path: str) -> int:
    """Return the bytes of a file's tensors. Raises CannotLook naming what is wrong with it."""
    from volta_runtime.checkpoint.safetensors import read_header

    header = read_header(probe.path(path))
    if header.faults:
        raise CannotLook(f"{path}: {header.faults[0].message}")
    return sum(info.bytes for info in header.tensors.values())


def read_directory(probe: Probe, path: str) -> dict[str, Any]:
    """Return what the files of a checkpoint directory, or a GGUF file, say of a model."""
    paths = gguf.parts(probe, path) if path.endswith(".gguf") else weight_files(probe, path)
    if paths[0].endswith(".gguf"):
        sizes = [gguf.size(probe, part) for part in paths]
        found = {"format": "gguf"} | gguf.shape_of(gguf.read_metadata(probe, paths[0]))
    else:
        sizes = [safetensors_bytes(probe, part) for part in paths]
        found = {"format": "safetensors"}
        try:
            found |= shape_of(read_json(probe, f"{path}/config.json"))
        except CannotLook as reason:
            found["problem"] = str(reason)
    return found | {
        "files": len(paths),
        "weight_bytes": sum(sizes),
        "largest_shard_bytes": max(sizes),
    }


def read_model(probe: Probe, server: Server) -> CheckpointFacts:
    """Return the model of a server that was told one."""
    model = server.flags.model
    path = server.model_dir
    if path is None and model and model.endswith(".gguf") and Path(model).is_absolute():
        path = model
    if path is None:
        nowhere = f"{model} is no directory here, and not in the cache of Hugging Face's hub"
        return CheckpointFacts(server=server.name, problem=server.model_problem or nowhere)
    try:
        return CheckpointFacts(server=server.name, path=path, **read_directory(probe, path))
    except CannotLook as reason:
        return CheckpointFacts(server=server.name, path=path, problem=str(reason))


def collect(probe: Probe) -> CheckpointsFacts:
    """Read the headers of every server's model."""
    servers = probe.once(serve.find).servers
    told = [server for server in servers if server.model_dir or server.flags.model]
    return CheckpointsFacts(models=[read_model(probe, server) for server in told])
