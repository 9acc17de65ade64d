"""Names of modules, which wrappers and joined layers spell in several ways."""

from functools import lru_cache
from typing import NamedTuple

from volta_runtime.checkpoint.fused import FUSED

# What multimodal classes put before the names of the text model. The longer ones come first.
WRAPPERS = (
    "model.language_model.model.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "model.",
)
_WHOLE_OF = {part: whole for whole, parts in FUSED.items() for part in parts}


class Spellings(NamedTuple):
    """What a config may mean a module by.

    names: its own, and that without a wrapper; of a joined layer the names of its parts too.
    whole: the name of the layer that engines join it to, empty where there is none.
    """

    names: tuple[str, ...]
    whole: str


@lru_cache(maxsize=1 << 16)
def plain(name: str) -> str:
    """The name without what a wrapper puts before it: "layers.0.mlp.down_proj"."""
    for wrapper in WRAPPERS:
        if name.startswith(wrapper):
            return name[len(wrapper) :]
    return name


def spellings(module: str) -> Spellings:
    """All spellings of a module's name."""
    short = plain(module)
    parent, dot, last = short.rpartition(".")
    names: tuple[str, ...] = (module, short) if short != module else (module,)
    names += tuple(f"{parent}{dot}{part}" for part in FUSED.get(last, ()))
    return Spellings(names, f"{parent}{dot}{_WHOLE_OF[last]}" if last in _WHOLE_OF else "")


@lru_cache(maxsize=1 << 16)
def like(name: str) -> str:
    """The name with its numbers left out, the same for all modules of a kind."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
