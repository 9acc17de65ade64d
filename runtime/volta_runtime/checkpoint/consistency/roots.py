"""What stands beside a decoder's layers: its embedding and its last norm."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization.names import like, plain


class Root(NamedTuple):
    """A family by the names in its checkpoints, without what wrappers put before them.

    layers: what comes before a layer's number. embeddings, norms: names that the embedding and the
    last norm go by, the usual one first; no norms where some of the family have none.
    """

    layers: str
    embeddings: tuple[str, ...]
    norms: tuple[str, ...]


# Of the classes of transformers, and GGUF's (llama.cpp, gguf-py/gguf/constants.py).
ROOTS = (
    Root(
        "layers",
        ("embed_tokens", "tok_embeddings", "word_embeddings", "embeddings", "embedding", "embed"),
        (
            "norm", "final_layernorm", "final_norm", "embedding_norm", "layer_norm", "norm_f",
            "final_layer_norm",
        ),
    ),
    Root("gpt_neox.layers", ("gpt_neox.embed_in",), ("gpt_neox.final_layer_norm",)),
    Root(
        "backbone.layers",
        ("backbone.embeddings", "backbone.embedding"),
        ("backbone.norm_f", "backbone.norm"),
    ),
    Root(
        "transformer.encoder.layers",
        ("transformer.embedding",),
        ("transformer.encoder.final_layernorm",),
    ),
    Root(
        "transformer.h",
        ("transformer.wte", "transformer.word_embeddings"),
        ("transformer.ln_f", "transformer.norm_f"),
    ),
    Root("h", ("wte", "word_embeddings"), ("ln_f",)),
    Root(
        "transformer.blocks", ("transformer.wte",), ("transformer.norm_f", "transformer.ln_f")
    ),
    Root("decoder.layers", ("decoder.embed_tokens", "shared"), ()),
    Root("blk", ("token_embd",), ("output_norm", "token_embd_norm", "enc.output_norm")),
)  # fmt: skip
_DRAFT = "fc"  # joins the hidden state of another model, whose embedding a draft may share


def roots(contents: Contents, modules: Mapping[str, Module]) -> Iterator[Fault]:
    """The embedding and the norm that are missing, where other names tell the family.

    One that the index places in a file is that file's fault.
    """
    stacks: dict[str, tuple[str, set[str]]] = {}
    outside = set()
    for name in modules:
        short = plain(name)
        stack, star, rest = like(short).partition(".*.")
        if star:
            stacks.setdefault(stack, (name.removesuffix(short), set()))[1].add(rest)
        else:
            outside.add(short)
    if _DRAFT in outside:
        return
    for root in ROOTS:
        if root.layers in stacks:
            prefix, kinds = stacks[root.layers]
            yield from _missing(contents, root, prefix, kinds, outside)


def _missing(
    contents: Contents, root: Root, prefix: str, kinds: Collection[str], outside: Collection[str]
) -> Iterator[Fault]:
    normed = any("norm" in kind or "ln_" in kind for kind in kinds)  # OLMo 1 has none at all
    missing = [
        (what, names)
        for what, names in (
            ("embedding", root.embeddings),
            ("last norm", root.norms if normed else ()),
        )
        if names and not any(_below(name, outside) for name in names)
    ]
    if len(missing) > 1 and not any("attn" in kind for kind in kinds):
        return  # a family of which no name is known
    elsewhere = contents.index.keys() - contents.tensors.keys() if missing else ()
    listed = [plain(name) for name in elsewhere]
    for what, (usual, *others) in missing:
        if any(_below(name, listed) for name in (usual, *others)):
            continue
        text = f"is missing: beside the layers there is no {what} by that name"
        text += f", nor {' or '.join(others)}" if others else ""
        wanted = f"{prefix}{usual}.weight"
        yield Fault("tensor-set", text, contents.path, wanted, wanted, "no such tensor")


def _below(name: str, names: Collection[str]) -> bool:
    """Whether one of the names is this one, or begins with it and a dot."""
    return any(other == name or other.startswith(f"{name}.") for other in names)
