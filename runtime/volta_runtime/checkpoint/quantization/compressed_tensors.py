"""compressed-tensors: config_groups, each with its targets and a scheme for their weights.

Source: compressed-tensors quantization/quant_args.py, quant_config.py, utils/match.py.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading, kv_cache
from volta_runtime.checkpoint.quantization.targets import Entry
from volta_runtime.checkpoint.scheme import Scheme
from volta_runtime.checkpoint.tensors import FLOATS_BY_NAME

_CLASSES = frozenset({"Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "LinearBase"})
_MIXED = "mixed-precision"
_DENSE = ("dense", "frozen")  # weights that are stored as they were
_FORMATS = {  # by the config's format and the bits of a weight
    ("nvfp4-pack-quantized", 4): "nvfp4-pack-quantized",
    ("mxfp4-pack-quantized", 4): "mxfp4-pack-quantized",
    ("mxfp8-quantized", 8): "mxfp8",
    ("pack-quantized", 4): "pack-quantized-int4",
    ("pack-quantized", 8): "pack-quantized-int8",
    ("float-quantized", 8): "float-quantized",
    ("int-quantized", 8): "int-quantized",
    ("int-quantized", 4): "int-quantized",  # W4A8: in bytes too
}
_DTYPES = FLOATS_BY_NAME | {"uint8": "U8"}


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    groups = []
    held = fields.inside("config_groups")
    if held is None and fields.text("format") not in _DENSE:
        fields.wrong("config_groups", "an object of groups")
    for name in held.data if held else ():
        group = held.inside(name) if held else None
        weights = group.inside("weights") if group else None
        if group is None or weights is None:  # a group may be of activations alone
            continue
        scheme = _scheme(group, weights, group.text("format") or fields.text("format"))
        if scheme is not None:
            groups.append(([_entry(target) for target in group.strings("targets")], scheme))
    sparsity = fields.inside("sparsity_config")
    if sparsity and sparsity.text("format") not in ("", *_DENSE):
        fields.note(
            f"{sparsity.place('format')} {sparsity.text('format')!r} is not read: the weights are"
            " judged as if they were not sparse",
            level="info",
        )
    ignore = [_entry(name) for name in fields.strings("ignore")]
    return Reading(groups, ignore, kv_cache(fields))


def _entry(text: str) -> Entry:
    if text.startswith("re:"):
        return Entry("pattern", text[3:], text)
    return Entry("class" if text in _CLASSES else "exact", text)


def _scheme(group: Fields, weights: Fields, stored: str) -> Scheme | None:
    bits, kind = weights.number("num_bits") or 8, weights.text("type") or "int"
    size = weights.number("group_size")
    strategy = weights.text("strategy") or ("group" if size else "tensor")
    activations = _activations(group)
    if stored in _DENSE:
        return None
    if stored == "naive-quantized":  # a number each, whatever its type
        stored = f"{kind}-quantized"
    if stored in ("", _MIXED):
        stored = _inferred(bits, kind, size, activations)
    name = _FORMATS.get((stored, bits), stored)
    if (stored, bits) not in _FORMATS:
        # Its tensors may have the names of a format that is known, and mean other numbers.
        known = {row for row, _ in _FORMATS}
        group.unknown("format", f"{stored} with {bits} bits", known, level="fail")
    return Scheme(
        format=name,
        file=group.file,
        where=group.where,
        bits=bits,
        group=_group(weights, strategy, size),
        symmetric=weights.flag("symmetric"),
        scale_dtype=_DTYPES.get(weights.text("scale_dtype").removeprefix("torch.")),
        act_order=_act_order(weights),
        activations=activations,
    )


def _inferred(bits: int, kind: str, size: int | None, activations: str) -> str:
    """The format of a config without one, as the library infers it (compressors/format.py)."""
    if kind == "float" and bits == 4:
        return "mxfp4-pack-quantized" if size == 32 else "nvfp4-pack-quantized"
    if kind == "float":
        return "mxfp8-quantized" if size == 32 else "float-quantized"
    return "int-quantized" if activations else "pack-quantized"


def _group(weights: Fields, strategy: str, size: int | None) -> tuple[int, int] | None:
    if strategy == "tensor":
        return (0, 0)
    if strategy == "channel" or size == -1:
        return (1, 0)
    if strategy == "block":
        block = weights.numbers("block_structure", 2)
        return (block[0], block[1]) if block else None
    if strategy not in ("group", "tensor_group"):
        weights.wrong("strategy", "tensor, channel, group, tensor_group or block")
        return None
    if size is None or size < 1:
        weights.wrong("group_size", f"a positive whole number (strategy {strategy})")
        return None
    return (1, size)


def _act_order(weights: Fields) -> bool | None:
    """Whether the order of columns is kept in a tensor; "static" and "weight" need none."""
    value = weights.data.get("actorder")
    return None if value is None else value in (True, "group", "dynamic")


def _activations(group: Fields) -> str:
    inputs = group.inside("input_activations")
    return f"{inputs.text('type') or 'int'}{inputs.number('num_bits') or 8}" if inputs else ""
