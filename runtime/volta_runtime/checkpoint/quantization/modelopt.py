"""ModelOpt: one quant_algo, or MIXED_PRECISION with one for each module of quantized_layers.

The same in two files: hf_quant_config.json (its `quantization`), and config.json, where the groups
and what is left out have compressed-tensors' names. Source: NVIDIA/Model-Optimizer
torch/export/convert_hf_config.py, quant_utils.py; vllm quantization/modelopt.py.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import ALL, Reading, kv_cache
from volta_runtime.checkpoint.quantization.targets import Entry, glob
from volta_runtime.checkpoint.scheme import Scheme

_NVFP4 = ("modelopt-nvfp4", "modelopt-nvfp4-awq")
_ALGOS: dict[str, tuple[str, tuple[int, int] | None, str]] = {  # format, group, activations
    "NVFP4": ("modelopt-nvfp4", None, "float4"),
    "W4A16_NVFP4": ("modelopt-nvfp4", None, ""),
    "NVFP4_AWQ": ("modelopt-nvfp4-awq", None, "float4"),
    "W4A8_NVFP4_FP8": ("modelopt-nvfp4", None, "float8"),
    "FP8": ("modelopt-fp8", (0, 0), "float8"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("modelopt-fp8", (1, 0), "float8"),
    "FP8_PB_WO": ("modelopt-fp8", None, ""),
    "FP8_BLOCK_SCALES": ("modelopt-fp8", None, ""),
    "MXFP8": ("mxfp8", (1, 32), "float8"),
}
_MIXED = "MIXED_PRECISION"
_UNQUANTISED = ("", "NONE", "UNQUANTIZED")


def read(fields: Fields) -> Reading:
    """Read quantization_config of config.json, or `quantization` of hf_quant_config.json."""
    algo = fields.text("quant_algo").upper()
    ignore = [glob(name) for key in ("ignore", "exclude_modules") for name in fields.strings(key)]
    groups: list[tuple[list[Entry], Scheme | None]] = []
    if algo == _MIXED or (not algo and "quantized_layers" in fields):
        groups = _by_layer(fields) if "quantized_layers" in fields else _by_group(fields)
    elif scheme := _scheme(fields, algo, _group_size(fields)):
        groups = [([*ALL], scheme)]
    return Reading(groups, ignore, kv_cache(fields))


def _by_layer(fields: Fields) -> list[tuple[list[Entry], Scheme | None]]:
    """quantized_layers: a module's name, of which all that lies below has the scheme too."""
    layers = fields.inside("quantized_layers")
    names: dict[tuple[str, int | None], list[Entry]] = {}
    schemes: dict[tuple[str, int | None], Scheme | None] = {}
    for name in layers.data if layers else ():
        layer = layers.inside(name) if layers else None
        if layer is None:
            continue
        key = layer.text("quant_algo").upper(), layer.number("group_size")
        if key not in schemes:
            schemes[key] = _scheme(layer, key[0], key[1])
        names.setdefault(key, []).append(glob(name))
    return [(names[key], schemes[key]) for key in names]


def _by_group(fields: Fields) -> list[tuple[list[Entry], Scheme | None]]:
    """config_groups, where no quantized_layers say more: 4 bits are NVFP4, 8 are FP8 or MXFP8."""
    groups: list[tuple[list[Entry], Scheme | None]] = []
    held = fields.inside("config_groups")
    if held is None:
        fields.wrong("quantized_layers", f"an object of modules (quant_algo {_MIXED})")
    for name in held.data if held else ():
        group = held.inside(name) if held else None
        weights = group.inside("weights") if group else None
        if group is None or weights is None:
            continue
        size = weights.number("group_size")
        eight = "MXFP8" if size == 32 else "FP8"
        algo = "NVFP4" if weights.number("num_bits") == 4 else eight
        scheme = _scheme(weights, algo, size)
        targets = group.strings("targets")
        groups.append(([glob(target) for target in targets], scheme))
    return groups


def _scheme(fields: Fields, algo: str, size: int | None) -> Scheme | None:
    if algo in _UNQUANTISED:
        return None
    if algo not in _ALGOS:
        fields.unknown("quant_algo", algo, _ALGOS)
        return Scheme(algo.lower(), fields.file, fields.where)
    name, group, activations = _ALGOS[algo]
    if name in _NVFP4:
        # ModelOpt's own config.json of NVFP4_AWQ has none; its other file is the one that engines
        # read it from.
        if size is None and fields.file.name == "hf_quant_config.json":
            fields.note(
                f"{fields.place('group_size')} is missing, and engines refuse {algo} without it",
                expected="16",
                found="none",
                check="group-size-config",
            )
        group = (1, size) if size else None
    elif group is None:
        group = (size, size) if size else (128, 128)
    return Scheme(
        format=name,
        file=fields.file,
        where=fields.where,
        bits=4 if name in _NVFP4 else 8,
        group=group,
        activations=activations,
        also=_also(name, group),
    )


def _also(name: str, group: tuple[int, int] | None) -> tuple[str, ...]:
    """The other layouts of a promise."""
    if name == "modelopt-nvfp4-awq":
        return ("modelopt-nvfp4",)  # layers whose pre_quant_scale is folded into the norm before
    return ("fp8-block",) if group and group[0] > 1 else ()  # weight_scale_inv


def _group_size(fields: Fields) -> int | None:
    """group_size, which config.json has in its groups."""
    size = fields.number("group_size")
    held = fields.inside("config_groups")
    for name in held.data if held and size is None else ():
        group = held.inside(name) if held else None
        weights = group.inside("weights") if group else None
        size = weights.number("group_size") if weights else None
    return size
