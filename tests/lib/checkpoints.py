"""Makes checkpoints for tests: any tensors and any config, sound or not, sparse where large."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.safetensors import tensor_bytes

Spec = tuple[Any, ...]  # (dtype, shape), or (dtype, shape, data as bytes)


def write_shard(file: Path, tensors: Mapping[str, Spec], metadata: Any = None) -> None:
    """Write one safetensors file; tensors without data are holes, so of zeros and of no size."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    position = 0
    for name, (dtype, shape, *_) in tensors.items():
        end = position + tensor_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with file.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        start = stream.tell()
        for name, (_, _, *data) in tensors.items():
            if data:
                stream.seek(start + header[name]["data_offsets"][0])
                stream.write(data[0])
        stream.truncate(start + position)


def write(
    directory: Path,
    tensors: Mapping[str, Spec],
    config: Mapping[str, Any],
    shards: int = 1,
    files: Mapping[str, Any] = {},
) -> Path:
    """Write a checkpoint; with several shards its index too. `files` are JSON objects or text."""
    directory.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    if shards == 1:
        write_shard(directory / "model.safetensors", tensors)
    else:
        weight_map = {}
        for number in range(shards):
            part: Sequence[str] = names[number::shards]
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            write_shard(directory / file, {name: tensors[name] for name in part})
            weight_map |= dict.fromkeys(part, file)
        size = sum(tensor_bytes(dtype, shape) for dtype, shape, *_ in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, content in {"config.json": config, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text)
    return directory
