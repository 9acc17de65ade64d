"""Layers and experts against their like and the config's numbers: what is missing or over."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from volta_runtime.checkpoint.architecture import Architecture, text_fields
from volta_runtime.checkpoint.contents import CONFIG, Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization.names import like, plain
from volta_runtime.checkpoint.tensors import TensorInfo

_LAYER = re.compile(
    r"(?P<stack>(?:.*\.)?(?:layers|blocks|blk|h))\.(?P<number>\d{1,9})\.(?P<rest>.+)"
)
_EXPERT = re.compile(r"(?P<group>(?:.*\.)?experts)\.(?P<number>\d{1,9})\.(?P<rest>.+)")
_TEXT = ("layers", "blk", "h", "transformer.h", "decoder.layers")  # whose number config.json tells
# A layer lacks what its like have where so many times more have all of its modules and another.
_MAJORITY = 3
_MODELS = 16  # kinds of layers that others are held against; models have up to five
# Parts of a block whose others are of no use alone. Keys and values may be another layer's.
_NEEDED = frozenset(
    (
        "q_proj",
        "o_proj",
        "out_proj",
        "qkv_proj",
        "up_proj",
        "down_proj",
        "gate_up_proj",
        "gate",
        "router",
    )
)
_SHARING = ("attention_k_eq_v", "num_kv_shared_layers")  # Gemma 4
_SHARED = ("k_proj", "v_proj", "k_norm", "v_norm")
_STRAY = re.compile(r"(?:weight_\w+|\w*_global_scale|q(?:weight|zeros)|g_idx)")


@dataclass
class _Layer:
    """kinds: its modules by name without numbers; experts: their numbers by kind."""

    kinds: dict[str, Module] = field(default_factory=dict)
    experts: dict[str, dict[int, Module]] = field(default_factory=dict)


def layers(
    contents: Contents, architecture: Architecture, modules: Mapping[str, Module]
) -> Iterator[Fault]:
    """The tensors that are missing, there twice, or more than the config says."""
    yield from _twice(modules)
    yield from _strays(modules)
    text = text_fields(contents.configs.get(CONFIG, {}))
    shares = any(text.get(key) for key in _SHARING)
    for stack, found in _stacks(modules).items():
        of_text = stack in _TEXT
        if of_text or stack.endswith(("layers", "blocks")):
            yield from _numbers(contents, stack, found, architecture if of_text else None)
        yield from _unlike(stack, found, shares)
        for number, layer in found.items():
            told = (
                architecture.layers[number].experts
                if of_text and number < len(architecture.layers)
                else 0
            )
            yield from _experts(layer.experts, told or architecture.experts)


def _stacks(modules: Mapping[str, Module]) -> dict[str, dict[int, _Layer]]:
    stacks: dict[str, dict[int, _Layer]] = {}
    for name, module in modules.items():
        match = _LAYER.fullmatch(plain(name))
        if match is None:
            continue
        layer = stacks.setdefault(match["stack"], {}).setdefault(int(match["number"]), _Layer())
        layer.kinds.setdefault(like(match["rest"]), module)
        if "bias" in module.tensors:
            layer.kinds.setdefault(f"{like(match['rest'])}.bias", module)
        if expert := _EXPERT.fullmatch(match["rest"]):
            kind = f"{expert['group']}.*.{expert['rest']}"
            layer.experts.setdefault(kind, {})[int(expert["number"])] = module
    return stacks


def _twice(modules: Mapping[str, Module]) -> Iterator[Fault]:
    """One module under two spellings: which of them an engine takes is not told."""
    names: dict[str, str] = {}
    for name, module in modules.items():
        first = names.setdefault(plain(name), name)
        if first != name:
            info = next(iter(module.tensors.values()))
            text = f"is there twice, as {first} and as {name}"
            yield Fault("tensor-set", text, info.file, info.name, "one of the two", "both")


def _strays(modules: Mapping[str, Module]) -> Iterator[Fault]:
    """Tensors that are named as a parameter of a weight, and are of no format."""
    for name, module in modules.items():
        last = name.rpartition(".")[2]
        if module.tensors.keys() == {"weight"} and _STRAY.fullmatch(last):
            info = module.tensors["weight"]
            text = f"no weight format that Volta knows has a {last}"
            yield Fault(
                "tensor-set", text, info.file, info.name, "no such tensor", info.dtype, "warn"
            )


def _numbers(
    contents: Contents, stack: str, found: Mapping[int, _Layer], architecture: Architecture | None
) -> Iterator[Fault]:
    """The numbers of layers: from 0 without a gap to what the config says."""
    told = len(architecture.layers) if architecture else 0
    drafts = architecture.mtp_layers if architecture else 0
    last = told or max(found) + 1
    gap = next((number for number in range(len(found) + 1) if number not in found), 0)
    if gap < last:
        missing = sum(number not in found for number in range(min(last, gap + len(found) + 1)))
        said = f"config.json says {told} layers" if told else f"there is a {stack}.{max(found)}"
        text = f"no tensor of {stack}.{gap} is there, and {said}"
        if missing > 1:
            text += f"; it is the first of {missing} that are missing"
        yield Fault(
            "tensor-set", text, contents.path, f"{stack}.{gap}",
            f"layers 0 to {last - 1}", f"{len(found)} layers",
        )  # fmt: skip
    over = sorted(number for number in found if told and number >= told + drafts)
    if over:
        info = _any(found[over[0]].kinds.values())
        text = f"is of layer {over[0]}, and config.json says {told} layers"
        text += f" and {drafts} of multi-token prediction" if drafts else ""
        if over[1:]:
            text += f": there are tensors of {len(found)}, up to layer {over[-1]}"
        yield Fault(
            "tensor-set", text, info.file, info.name,
            f"layers 0 to {told + drafts - 1}", f"layer{'s to' * bool(over[1:])} {over[-1]}",
        )  # fmt: skip


def _unlike(stack: str, found: Mapping[int, _Layer], shares: bool) -> Iterator[Fault]:
    """Layers that lack a module which those alike have.

    Several that lack the same may be meant so (keys that are shared, attention that was pruned):
    that is told as a warning, unless the rest of the block is there and needs it. shares: whether
    the config says that layers do without keys or values of their own.
    """
    kinds = {number: frozenset(layer.kinds) for number, layer in found.items()}
    counts = Counter(kinds.values())
    models = counts.most_common(_MODELS)
    for number, mine in sorted(kinds.items()):
        fuller = ((k, n) for k, n in models if mine < k and counts[mine] * _MAJORITY <= n)
        other, count = next(fuller, (mine, 0))
        if not count:
            continue
        alone = counts[mine] == 1
        model = next(n for n, of_it in kinds.items() if of_it == other)
        for kind in sorted(other - mine):
            info = _any([found[model].kinds[kind]])
            if shares and kind.rpartition(".")[2] in _SHARED:
                continue
            text = f"layer {number} has no {kind}, which {count} layers like it have"
            yield Fault(
                "tensor-set", text, _any(found[number].kinds.values()).file,
                f"{stack}.{number}.{kind}", f"as {info.name}", "no such tensor",
                "fail" if alone or _needed(kind, mine) else "warn",
            )  # fmt: skip


def _needed(kind: str, mine: Collection[str]) -> bool:
    """Whether the rest of its block is there, of which no part can do without it."""
    block, _, last = kind.rpartition(".")
    beside = any(other.startswith(f"{block}.") for other in mine) if block else False
    return beside and last in _NEEDED


def _experts(kinds: Mapping[str, Mapping[int, Module]], told: int) -> Iterator[Fault]:
    """The numbers of the experts of one layer; kinds: by "mlp.experts.*.down_proj".

    What the parts of the experts have in common is told once.
    """
    alike: dict[tuple[str, frozenset[int]], list[str]] = {}
    for kind, found in kinds.items():
        alike.setdefault((kind.partition("*")[0], frozenset(found)), []).append(kind)
    for (stem, numbers), same in alike.items():
        tails = [kind.removeprefix(f"{stem}*.") for kind in same]
        expert = max(numbers)
        first = kinds[same[0]][expert]
        info, before = _any([first]), first.name.removesuffix(f"{stem}{expert}.{tails[0]}")
        last = told or expert + 1
        gap = next((number for number in range(len(numbers) + 1) if number not in numbers), 0)
        if gap < last:
            name = f"{before}{stem}{gap}"
            name += f".{tails[0]}" if len(tails) == 1 else ""
            text = f"is missing: {len(numbers)} of {last} experts have their {', '.join(tails)}"
            yield Fault(
                "tensor-set", text, info.file, name,
                f"experts 0 to {last - 1}", f"{len(numbers)} experts",
            )  # fmt: skip
        over = sorted(number for number in numbers if told and number >= told)
        if over:
            info = _any([kinds[same[0]][over[0]]])
            text = f"is of expert {over[0]}, and config.json says {told} experts"
            if over[1:]:
                text += f": there are {len(numbers)}, up to expert {over[-1]}"
            yield Fault(
                "tensor-set", text, info.file, info.name,
                f"experts 0 to {told - 1}", f"expert{'s to' * bool(over[1:])} {over[-1]}",
            )  # fmt: skip


def _any(modules: Iterable[Module]) -> TensorInfo:
    """A tensor of the first of these modules."""
    return next(iter(next(iter(modules)).tensors.values()))
