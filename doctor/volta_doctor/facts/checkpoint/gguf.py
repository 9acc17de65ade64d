"""GGUF files, as far as a server's memory is judged by them: sizes, and what the metadata says."""

from typing import Any

from volta_doctor.probe import CannotLook, Probe


def parts(probe: Probe, path: str) -> list[str]:
    """Return the paths of all parts of a GGUF file. Raises CannotLook where one is missing."""
    from volta_runtime.checkpoint.gguf import part_names

    directory, _, own = path.rpartition("/")
    # A part other than the first is no model that a server can be told.
    names = part_names(own) if "-00001-of-" in own else [own]
    paths = [f"{directory}/{name}" for name in names]
    for part in paths:
        if not probe.exists(part):
            raise CannotLook(f"{part}: no such file")
    return paths


def size(probe: Probe, path: str) -> int:
    """Return a file's size in bytes; metadata is some MB of it, or less."""
    try:
        return probe.path(path).stat().st_size
    except OSError as error:
        raise CannotLook(f"{path}: {error.strerror}") from error


def read_metadata(probe: Probe, path: str) -> dict[str, Any]:
    """Return the pairs, without long arrays. Raises CannotLook naming the file."""
    from volta_runtime.checkpoint.gguf import read_gguf

    head = read_gguf(probe.path(path))
    if head.faults and not head.tensors:
        raise CannotLook(f"{path}: {head.faults[0].message}")
    return dict(head.metadata)


def shape_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of CheckpointFacts that the metadata gives."""
    kind = str(metadata.get("general.architecture", ""))
    found: dict[str, Any] = {"model_type": kind} if kind else {}
    for field, key in (
        ("num_hidden_layers", "block_count"),
        ("num_attention_heads", "attention.head_count"),
        ("head_dim", "attention.key_length"),
        ("hidden_size", "embedding_length"),
        ("max_position_embeddings", "context_length"),
        ("sliding_window", "attention.sliding_window"),
    ):
        if isinstance(value := metadata.get(f"{kind}.{key}"), int):
            found[field] = value
    layers, heads = found.get("num_hidden_layers"), found.get("num_attention_heads")
    if layers is None:
        return found
    # By layer in a hybrid model: 0 where a layer has no attention.
    by_layer = metadata.get(f"{kind}.attention.head_count_kv", heads)
    if isinstance(by_layer, int):
        by_layer = [by_layer] * layers
    if isinstance(by_layer, list):
        found["num_key_value_heads"] = max(by_layer, default=0)
        every = metadata.get(f"{kind}.full_attention_interval")
        attending = sum(number > 0 for number in by_layer)
        found["full_layers"] = layers // every if isinstance(every, int) and every else attending
        found["sliding_layers"] = 0  # which layers have a window is not said: all count as full
    if heads and "hidden_size" in found:
        found.setdefault("head_dim", found["hidden_size"] // heads)
    return found
