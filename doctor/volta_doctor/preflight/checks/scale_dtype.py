"""The type of scales: in the config, in the tensors, and in what computes with them."""

from collections.abc import Iterator
from itertools import pairwise

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.scale_tensors import Scale, loaders, looked, scales_of
from volta_doctor.preflight.subject import Subject
from volta_doctor.scale_limits import HALF_FOUR_BITS, HALF_MAX
from volta_doctor.words import few

_HALVES = ("half", "float16", "fp16")
_SINGLES = ("float", "float32", "fp32")
_SAME = {"F8_E8M0": "U8"}  # which older writers store as plain bytes


@model_check("scale-dtype")
def type_of_scales(subject: Subject, row: Row) -> Iterator[Finding]:
    """The declared type, the stored one, and FP16's range."""
    held = list(scales_of(subject, "scale"))
    if not held:
        yield row.skip("No tensor of scales is in this checkpoint.")
        return
    found = [told for scale in held if (told := _declared(row, scale))]
    if _dtype(subject) not in _SINGLES:
        for scale in held:
            if scale.info.dtype not in ("F32", "BF16") or not _rounding(subject, scale):
                continue
            found += _out_of_range(row, scale)
            if scale.plain:
                found += _plain(subject, row, scale)
    found += [
        row.info(
            f"The scales are {scale.info.dtype}, and no scale_dtype says that they are.",
            scale.evidence("F8_E4M3, or a scale_dtype", scale.info.dtype),
            subject=scale.info.name,
        )
        for scale in held
        if scale.plain and not (scale.module.scheme and scale.module.scheme.scale_dtype)
    ]
    yield from found
    if not found:
        types = few(sorted({scale.info.dtype for scale in held}))
        yield row.ok(
            f"Scales of {types}, as declared and within what is computed in."
            f" {looked(subject.scales)}."
        )


def _dtype(subject: Subject) -> str:
    """The --dtype that was given, or that is always given to the engine; empty without one."""
    words = subject.engine.always if subject.engine else []
    always = [value for name, value in pairwise(words) if name == "--dtype"]
    return (subject.flags.dtype or next(iter(always), "")).lower().removeprefix("auto")


def _rounding(subject: Subject, scale: Scale) -> list[str]:
    """The engines that may round this scale to FP16."""
    row = scale.module.format
    engines = loaders(subject, row.name) if row else []
    return [
        engine.title
        for engine in engines
        if engine.scaling is None or engine.scaling.folded == "float16"
    ] or ([] if engines else ["a loader"])


def _declared(row: Row, scale: Scale) -> Finding | None:
    scheme = scale.module.scheme
    declared, stored = scheme.scale_dtype if scheme else None, scale.info.dtype
    if (
        scheme is None
        or declared is None
        or _SAME.get(declared, declared) == _SAME.get(stored, stored)
    ):
        return None
    return row.fail(
        f"The scales are stored as {stored}, and scale_dtype says {declared}.",
        scale.evidence(declared, stored),
        Evidence(str(scheme.file), f"{scheme.where}: scale_dtype {declared}"),
        subject=scale.info.name,
    )


def _plain(subject: Subject, row: Row, scale: Scale) -> Iterator[Finding]:
    """Scales of a form without a written rule: how a loader casts them is nowhere said."""
    dtype, stored = _dtype(subject), scale.info.dtype
    who = few(_rounding(subject, scale), by=" and ")
    seen = scale.evidence("FP32 until the product", f"{stored}, --dtype {dtype or 'auto'}")
    if stored == "BF16":
        text = (
            f"The scales are BF16 and {who} computes in FP16: of the same width, with another"
            " range, so no check of sizes stops a wrong cast."
        )
        make = row.fail if dtype in _HALVES else row.warn
        yield make(text, seen, subject=scale.info.name)
    elif dtype in _HALVES:
        text = (
            f"The scales are F32 and {who} computes in FP16: a cast overflows above 65504 and loses"
            " bits below 6.1e-5."
        )
        yield row.warn(text, seen, subject=scale.info.name)


def _out_of_range(row: Row, scale: Scale) -> Iterator[Finding]:
    values = scale.values
    if values is None or values.high is None:
        return
    if values.high > HALF_MAX:
        text = "A scale is above 65504, where FP16 ends."
        found = f"up to {values.high:.3g} in {scale.looked}"
        yield row.fail(text, scale.evidence("at most 65504", found), subject=scale.info.name)
    if values.least is not None and values.least < HALF_FOUR_BITS:
        text = "FP16 keeps fewer than 4 bits of the smallest scales, or none."
        found = f"down to {values.least:.3g} in {scale.looked}"
        seen = scale.evidence(f"at least {HALF_FOUR_BITS:.1e}", found)
        yield row.warn(text, seen, subject=scale.info.name)
