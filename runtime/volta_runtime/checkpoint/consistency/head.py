"""The output head: what config.json says of it, and whether it is there."""

from collections.abc import Iterator, Mapping
from typing import Any

from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization.names import plain

_GENERATE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_HEADS = ("lm_head", "output", "embed_out")
_EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings")


def head(contents: Contents, modules: Mapping[str, Module]) -> Iterator[Fault]:
    """tie_word_embeddings against the tensors, and a head that is quantised."""
    config = contents.configs.get("config.json", {})
    file = contents.path / "config.json"
    found = next((m for name, m in modules.items() if plain(name) in _HEADS), None)
    tied = _tied(config)
    embedded = any(plain(name).rpartition(".")[2] in _EMBEDDINGS for name in modules)
    if found is None and tied is False and embedded and _generates(config):
        yield Fault(
            "head-tied",
            "tie_word_embeddings is false, and there is no lm_head",
            file,
            "lm_head.weight",
            "lm_head.weight",
            "no such tensor",
        )
    if found is not None and tied is True:
        yield Fault(
            "head-tied",
            "tie_word_embeddings is true, so that engines use the embedding and not this tensor",
            file,
            found.name,
            "no lm_head, or tie_word_embeddings false",
            "both",
            "warn",
        )
    if found is not None and found.quantised and found.format:
        info = next(iter(found.tensors.values()))
        text = f"the head is {found.format.name}: engines that read heads as dense serve nonsense"
        yield Fault("head-tied", text, info.file, found.name, "dense", found.format.name, "info")


def _tied(config: Mapping[str, Any]) -> bool | None:
    """What config.json says, the wrapper's word before the text model's."""
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, dict) else {}):
        value = holder.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None


def _generates(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and any(
        isinstance(name, str) and name.endswith(_GENERATE) for name in names
    )
