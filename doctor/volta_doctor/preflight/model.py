"""What a checkpoint is, as a report tells it: size, formats, and its modules put together."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import msgspec

from volta_doctor.preflight.subject import Subject
from volta_doctor.words import one_line
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization.names import like

_UNRECOGNISED = "unrecognised"
_NAME = 200  # characters of a name


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The modules in one weight format, and the bytes that they take on disk."""

    format: str
    modules: int
    bytes: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Modules whose names differ in numbers alone (`*`), in one format and of one shape.

    `shape` is logical: [out, in], with experts before these where they are one tensor. `group` are
    the weights that share a scale, as rows and columns; 0 stands for all of them.
    """

    name: str
    format: str
    modules: int
    shape: list[int]
    group: list[int] | None
    bytes: int


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What was read: the headers of so many files, and so many of the scales' bytes."""

    headers: int
    scale_bytes: int
    scale_bytes_in_all: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint.

    `kind` is what its weights are in: safetensors, gguf, pickle, index (names alone: no file with
    weights is there) or none. `parameters` counts logical weights; None where no header told.
    `bytes` are those of its `files` with weights. `formats` has the largest share first.
    """

    path: str
    name: str
    kind: str
    architecture: str
    layers: int
    parameters: int | None
    files: int
    bytes: int
    formats: list[Share]
    modules: list[Group]
    read: Read


def told(subject: Subject) -> Model:
    """Return what there is to tell of a subject's checkpoint."""
    checkpoint = subject.checkpoint
    contents, architecture = checkpoint.contents, checkpoint.architecture
    modules = list(checkpoint.modules.values())
    weights = {info.file.name for info in contents.tensors.values()} | {*contents.index.values()}
    held = {file.name: file.size for file in contents.files if file.name in weights}
    names = architecture.names or ((architecture.model_type,) if architecture.model_type else ())
    return Model(
        path=one_line(str(contents.path), _NAME),
        name=one_line(_name(contents.path), _NAME),
        kind=contents.kind,
        architecture=one_line(", ".join(names), _NAME),
        layers=len(architecture.layers),
        parameters=sum(map(_parameters, modules)) if contents.tensors else None,
        files=len(held),
        bytes=sum(held.values()),
        formats=_shares(modules),
        modules=sorted(_groups(modules), key=lambda group: (group.name, group.format)),
        read=Read(
            headers=len({info.file for info in contents.tensors.values()}),
            scale_bytes=subject.scales.bytes_read,
            scale_bytes_in_all=subject.scales.bytes_in_all,
        ),
    )


def _name(path: Path) -> str:
    """Return a model's name; in the cache of huggingface_hub its directory is that of a commit."""
    path = path.absolute()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name


def _parameters(module: Module) -> int:
    bias = module.tensors.get("bias")
    return prod(module.shape) + (prod(bias.shape) if bias else 0)


def _format(module: Module) -> str:
    return module.format.name if module.format else _UNRECOGNISED


def _shares(modules: list[Module]) -> list[Share]:
    found: dict[str, list[int]] = {}
    for module in modules:
        found.setdefault(_format(module), []).append(module.bytes)
    shares = [Share(format=f, modules=len(sizes), bytes=sum(sizes)) for f, sizes in found.items()]
    return sorted(shares, key=lambda share: -share.bytes)


def _groups(modules: list[Module]) -> Iterator[Group]:
    alike: dict[object, list[Module]] = {}
    for module in modules:
        alike.setdefault(
            (like(module.name), _format(module), module.shape, module.group), []
        ).append(module)
    for same in alike.values():
        first = same[0]
        yield Group(
            name=one_line(like(first.name) if len(same) > 1 else first.name, _NAME),
            format=_format(first),
            modules=len(same),
            shape=list(first.shape),
            group=list(first.group) if first.group else None,
            bytes=sum(module.bytes for module in same),
        )
