"""Scales of a quantised model: their type, direction and groups, and those of fused parts."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.scale_limits import APART, HALF_MAX, spread
from volta_doctor.why.case import Case
from volta_doctor.why.model import (
    Tensor,
    dtype,
    group_sizes,
    modelopt,
    naming_lines,
    quantization,
    tensor_names,
    tensors,
    text_config,
)
from volta_doctor.why.rules import likely, rule
from volta_runtime.checkpoint.fused import fused

_LARGEST = re.compile(
    r"(?:weight_scale|block.scale|scales?)\S*.{0,40}?\b(?:max|amax)\b[ =:]{1,3}"
    r"(\d+(?:\.\d+)?(?:e\+?\d+)?)",
    re.IGNORECASE,
)
_BLOCK_SCALES = ("weight_scale", "scales", "weight_scale_inv")
_GLOBALS = ("weight_global_scale", "weight_scale_2")
_FOUR_BIT_FLOATS = re.compile(r"nvfp4|mxfp4", re.IGNORECASE)  # two values in a byte
_INPUTS = (
    (("down_proj",), "intermediate_size"),
    (("gate_proj", "up_proj", "q_proj", "k_proj", "v_proj", "gate_up_proj"), "hidden_size"),
)
_FEW = 8  # columns of a scale: with fewer it is one per channel or per block of 128
_NAMES = {"float8_e4m3fn": "F8_E4M3", "e4m3": "F8_E4M3", "bfloat16": "BF16", "bf16": "BF16"}
_NAMES |= {"float32": "F32", "fp32": "F32", "float16": "F16", "half": "F16", "uint8": "U8"}


def _declared(case: Case) -> str:
    """Return scale_dtype as a safetensors header would say it; empty without one."""
    for config in case.configs:
        fields = quantization(config)
        groups = fields.get("config_groups")
        inner = [g.get("weights") for g in groups.values()] if isinstance(groups, dict) else []
        for place in (fields, *(one for one in inner if isinstance(one, dict))):
            name = str(place.get("scale_dtype") or "").removeprefix("torch.")
            if name:
                return _NAMES.get(name.lower(), name.upper())
    return ""


@rule("scale-dtype")
def type_of_scales(case: Case, row: Row) -> Iterator[Finding]:
    """The stored type, the one that the config names, and that of the products."""
    declared = _declared(case)
    scales = [t for t in tensors(case) if t.kind in _BLOCK_SCALES and t.type]
    if not (declared or scales):
        return
    half = dtype(case) == "float16"
    places = case.lines(r"scale_dtype", 1)
    for scale in scales:
        if declared and scale.type != declared:
            yield row.fail(
                f"{scale.name} is stored as {scale.type}, scale_dtype says {declared}.",
                scale.evidence,
                *places,
            )
            return
    stored = {scale.type for scale in scales} or {declared}
    shown = [*(s.evidence for s in scales[:1]), *places, *case.lines(r"--dtype|dtype=torch", 1)]
    if half and "BF16" in stored:
        yield row.fail(
            "The scales are bfloat16 and the products float16: of the same width, with another"
            " range, so no check of sizes stops them.",
            *shown,
        )
    elif half and "F32" in stored and declared:
        yield likely(
            row.warn(
                "The scales are float32 and the products float16: above 65504 a cast overflows.",
                *shown,
            ),
            "the text does not show where the loader casts them",
        )


@rule("scale-dtype")
def too_large_for_half(case: Case, row: Row) -> Iterator[Finding]:
    """A scale that float16 cannot hold."""
    for match, evidence in case.matching(_LARGEST):
        if float(match[1]) > HALF_MAX and dtype(case) == "float16":
            yield row.fail(f"A scale is {float(match[1]):g}, and float16 ends at 65504.", evidence)
            return


@rule("scale-layout")
def names_and_ranks(case: Case, row: Row) -> Iterator[Finding]:
    """Two conventions of one format: FP8 blocks as DeepSeek or ModelOpt, NVFP4 scales in tiles."""
    for tensor in tensors(case):
        rank = len(tensor.shape) if tensor.shape else 0
        if tensor.kind == "weight_scale_inv" and rank == 2:
            blocks = case.lines("FP8_PB_WO", 1)
            if blocks:
                text = "FP8_PB_WO is declared, whose scales are weight_scale of rank 4, and"
                yield row.fail(f"{text} {tensor.name} has rank 2.", tensor.evidence, *blocks)
                return
        if tensor.kind == "weight_scale" and rank == 1 and tensor.type == "U8":
            size = tensor.shape[0] if tensor.shape else 0
            if size > 1:
                text = (
                    f"{tensor.name} has one dimension of {size} bytes: scales in tiles, which only"
                )
                yield row.fail(f"{text} TensorRT-LLM reads.", tensor.evidence)
                return


@rule("scale-direction")
def names_and_method(case: Case, row: Row) -> Iterator[Finding]:
    """The tensors' names give the direction; the declared method must be theirs."""
    if not naming_lines(case) and not case.configs:
        return
    names = tensor_names(case)
    divisors = {n.rpartition(".")[0] for n in names if n.endswith(".weight_global_scale")}
    factors = {n.rpartition(".")[0] for n in names if n.endswith(".weight_scale_2")}
    places = case.lines(r"weight_global_scale|weight_scale_2", 2)
    if both := sorted(divisors & factors):
        yield row.fail(f"{both[0]} has weight_global_scale and weight_scale_2.", *places)
    for config in case.configs:
        fields = quantization(config)
        method = str(fields.get("quant_method") or ("modelopt" if modelopt(config) else ""))
        said = [*case.lines(r'"quant_method|"quant_algo', 1), *places]
        if method.startswith("modelopt") and divisors and not factors:
            text = (
                "The method is ModelOpt, which multiplies, and the tensors have weight_global_scale"
            )
            yield row.fail(f"{text}, a divisor.", *said)
        elif method == "compressed-tensors" and factors and not divisors:
            text = "The method is compressed-tensors, which divides, and the tensors have"
            yield row.fail(f"{text} weight_scale_2, a multiplier.", *said)
        elif method == "nvfp4":
            yield row.warn(
                'No written rule says in which direction "nvfp4" applies its global scale.', *said
            )


@rule("fused-globals-differ")
def parts_of_a_layer(case: Case, row: Row) -> Iterator[Finding]:
    """Loaders take one global scale for all parts of a fused layer, most of them the largest."""
    by_name = {t.module: t for t in tensors(case) if t.kind in _GLOBALS and t.value}
    worst: tuple[float, list[Tensor]] = (1.0, [])
    for parts in fused(by_name):
        found = [by_name[part] for part in parts]
        ratio = spread(tensor.value for tensor in found if tensor.value)
        worst = max(worst, (ratio, found), key=lambda pair: pair[0])
    ratio, found = worst
    if ratio <= 1:
        return
    text = f"The global scales of {found[0].module} and its other parts differ by {ratio - 1:.0%}."
    seen = [t.evidence for t in found]
    if ratio > APART:
        yield likely(row.fail(text, *seen), "the text does not show how the loader joins them")
    else:
        yield row.warn(text, *seen)


@rule("group-size-config")
def size_of_groups(case: Case, row: Row) -> Iterator[Finding]:
    """in_features over the columns of the scales is the group size."""
    declared = {size for config in case.configs for size in group_sizes(quantization(config))}
    declared |= {
        size
        for config in case.configs
        if isinstance(size := modelopt(config).get("group_size"), int) and size > 0
    }
    if not declared:
        return
    shapes = {t.name: t for t in tensors(case) if t.shape and len(t.shape) == 2}
    inputs = _inputs(case)
    halves = bool(case.lines(_FOUR_BIT_FLOATS, 1))
    for scale in shapes.values():
        size = _group(shapes, scale, halves) or _by_config(scale, inputs)
        if size and size not in declared:
            config = ", ".join(map(str, sorted(declared)))
            yield row.fail(
                f"{scale.module or scale.name} has groups of {size}, the config says {config}.",
                scale.evidence,
                *case.lines(r'"group_size|"q_group_size', 1),
            )
            return


def _inputs(case: Case) -> dict[str, int]:
    """Return the input size of a layer by the last part of its name, as config.json tells it."""
    found: dict[str, int] = {}
    for config in case.configs:
        fields = text_config(config)
        for names, field in _INPUTS:
            size = fields.get(field)
            if isinstance(size, int):
                found |= dict.fromkeys(names, size)
    return found


def _by_config(scale: Tensor, inputs: dict[str, int]) -> int:
    size = inputs.get(scale.module.rpartition(".")[2], 0)
    if scale.kind != "weight_scale" or not scale.shape or scale.shape[1] < _FEW:
        return 0
    return size // scale.shape[1] if size % scale.shape[1] == 0 else 0


def _group(shapes: dict[str, Tensor], scale: Tensor, halves: bool) -> int:
    """Return the group size of a layer, 0 where its shapes do not tell."""
    if not scale.shape:
        return 0
    if scale.kind == "scales":  # AWQ and GPTQ: [in / group, out]
        packed = shapes.get(f"{scale.module}.qweight".lstrip("."))
        if not packed or not packed.shape:
            return 0
        rows, out = scale.shape
        inputs = packed.shape[0] if packed.shape[1] != out else packed.shape[0] * 8
        return inputs // rows if rows and inputs % rows == 0 else 0
    if scale.kind != "weight_scale":
        return 0
    for kind in ("weight_packed", "weight"):
        packed = shapes.get(f"{scale.module}.{kind}".lstrip("."))
        untold = (2 if halves else 8) if kind == "weight_packed" else None
        values = {"U8": 2, "I32": 8, "": untold}.get(packed.type or "") if packed else None
        if packed and packed.shape and values and packed.shape[0] == scale.shape[0]:
            inputs, columns = packed.shape[1] * values, scale.shape[1]
            return inputs // columns if columns and inputs % columns == 0 else 0
    return 0
