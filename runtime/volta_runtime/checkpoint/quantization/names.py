"""Names of modules, which wrappers and fused layers spell in several ways."""

from functools import lru_cache

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


@lru_cache(maxsize=1 << 16)
def plain(name: str) -> str:
    """The name without what a wrapper puts before it: "layers.0.mlp.down_proj"."""
    for wrapper in WRAPPERS:
        if name.startswith(wrapper):
            return name[len(wrapper) :]
    return name


def spellings(module: str) -> tuple[str, ...]:
    """All names that a config may mean this module by, the module's own first."""
    short = plain(module)
    found = [module, short] if short != module else [module]
    parent, dot, last = short.rpartition(".")
    others = (_WHOLE_OF[last],) if last in _WHOLE_OF else FUSED.get(last, ())
    found += [f"{parent}{dot}{other}" for other in others]
    return tuple(found)


@lru_cache(maxsize=1 << 16)
def like(name: str) -> str:
    """The name with its numbers left out, the same for all modules of a kind."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
