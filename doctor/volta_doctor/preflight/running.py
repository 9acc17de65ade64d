"""What keeps an engine from running a checkpoint on sm_70, module by module."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.catalog.engines import Engine, Support
from volta_doctor.findings import HOST, Evidence
from volta_doctor.sizing.split import role_of
from volta_doctor.words import several
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.formats import BY_NAME
from volta_runtime.checkpoint.module import Module


@dataclass(frozen=True)
class Obstacle:
    """Why an engine does not run a checkpoint.

    sentence: what it ends with, for how many modules. certain: false where the catalogue does not
    know. subject: the first module that is meant.
    """

    sentence: str
    certain: bool
    subject: str = HOST
    evidence: tuple[Evidence, ...] = ()


class _Kind(NamedTuple):
    """Modules that an engine's rows judge alike."""

    format: str
    method: str
    group: tuple[int, int] | None
    symmetric: bool | None
    act_order: bool | None
    experts: bool


def obstacles(checkpoint: Checkpoint, engine: Engine) -> list[Obstacle]:
    """Return what is in the way, first what is certain and what most modules meet.

    Nothing where it runs.
    """
    met: dict[tuple[str, tuple[int, int] | None, str | None], list[Module]] = {}
    rows: dict[str | None, Support] = {}
    for kind, modules in _kinds(checkpoint).items():
        support = _support(engine, kind)
        if support is None or not support.runs:
            says = support.sentence(kind.group) if support else None
            met.setdefault((kind.format, kind.group, says), []).extend(modules)
            if support:
                rows[says] = support
    most_first = sorted(met.items(), key=lambda one: -len(one[1]))
    found = [
        _obstacle(name, group, modules, rows.get(says))
        for (name, group, says), modules in most_first
    ]
    return [*_architecture(checkpoint, engine), *sorted(found, key=lambda one: not one.certain)]


def reserves(checkpoint: Checkpoint, engine: Engine) -> list[str]:
    """Return what is to know where it runs, of quantised modules: notes and variables."""
    notes = []
    for kind in _kinds(checkpoint):
        support = _support(engine, kind)
        if support is None or kind.format == "dense":
            continue
        asked = [f"needs {name}={value}" for name, value in support.env.items()]
        notes += [f"{kind.format} {text}" for text in asked]
        notes += [f"{kind.format}: {support.note}"] if support.note else []
    return list(dict.fromkeys(notes))


def variables(checkpoint: Checkpoint, engine: Engine) -> dict[str, str]:
    """Return the environment that it needs for a checkpoint, its own and that of the formats."""
    found = dict(engine.env)
    for kind in _kinds(checkpoint):
        if support := _support(engine, kind):
            found |= support.env
    return found


def _architecture(checkpoint: Checkpoint, engine: Engine) -> Iterator[Obstacle]:
    known, asked = engine.architectures, [*checkpoint.architecture.names]
    if known is None or checkpoint.contents.kind == "gguf" or {*asked} & {*known.names}:
        return  # a GGUF file has other names for them
    note = f" ({known.note})" if known.note else ""
    yield Obstacle(
        f"{known.sentence(asked).rstrip('.')}{note}.",
        certain=True,
        evidence=(
            Evidence(str(checkpoint.path), f"architectures {asked}"),
            Evidence("catalog/engines", known.source),
        ),
    )


@lru_cache(maxsize=1)  # of tens of thousands of modules, asked for of every engine
def _kinds(checkpoint: Checkpoint) -> dict[_Kind, list[Module]]:
    kinds: dict[_Kind, list[Module]] = {}
    index_alone = checkpoint.contents.kind == "index"
    for module in _promised(checkpoint) if index_alone else checkpoint.modules.values():
        if module.format is None:  # a fault of its own
            continue
        promised = module.scheme
        kind = _Kind(
            module.format.name,
            checkpoint.quantization.method if promised else "",
            module.group or (promised.group if promised else None),
            promised.symmetric if promised else None,
            promised.act_order if promised else None,
            role_of(module.name, checkpoint.architecture).expert,
        )
        kinds.setdefault(kind, []).append(module)
    return kinds


def _promised(checkpoint: Checkpoint) -> Iterator[Module]:
    """Yield what names and config alone let expect: an index has no headers that tell more."""
    for name in dict.fromkeys(tensor.rpartition(".")[0] for tensor in checkpoint.contents.index):
        last = name.rpartition(".")[2]
        class_name = "Norm" if "norm" in last else "Embedding" if "embed" in last else "Linear"
        scheme = checkpoint.quantization.scheme_of(name, class_name)
        row = BY_NAME.get(scheme.format) if scheme else BY_NAME["dense"]
        yield Module(name, row, (), None, {}, scheme)


def _support(engine: Engine, kind: _Kind) -> Support | None:
    return engine.supports(
        kind.format,
        method=kind.method,
        group=kind.group,
        symmetric=kind.symmetric,
        act_order=kind.act_order,
        experts=kind.experts,
    )


def _obstacle(
    name: str, group: tuple[int, int] | None, modules: list[Module], support: Support | None
) -> Obstacle:
    what = f"{several(len(modules), 'module')} in {name}"
    if group:
        what += f", a scale for {_of_group(group)}"
    if support is None:
        text = f"whether it runs {what} is not known."
        return Obstacle(text, certain=False, subject=modules[0].name)
    note = f"{support.note}; " if support.note else ""
    return Obstacle(
        f"{support.sentence(group).rstrip('.')} ({note}{what}).",
        certain=True,
        subject=modules[0].name,
        evidence=(Evidence("catalog/engines", support.source),),
    )


def _of_group(group: tuple[int, int]) -> str:
    rows, columns = group
    if not rows and not columns:
        return "the whole tensor"
    if not columns:
        return "each row"
    return f"{columns} weights" if rows == 1 else f"{rows} x {columns} weights"
