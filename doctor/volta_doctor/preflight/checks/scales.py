"""Scales against their formats: what they are, and what was read of them."""

from collections import Counter
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.preflight.checks._faults import faults
from volta_doctor.preflight.folding import folded
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.scale_tensors import Scale, in_nvfp4, looked, scales_of
from volta_doctor.preflight.subject import Subject
from volta_doctor.words import several

_NONE = "No layer is in NVFP4."
_USUAL = (1, 16)  # NVFP4's group


@model_check("nvfp4-scale")
def block_scales(subject: Subject, row: Row) -> Iterator[Finding]:
    """Types and shapes; what the config and the tensors agree on may still be no public format."""
    found = faults(subject, row)
    yield from found
    blocks = [scale for scale in scales_of(subject, "scale") if in_nvfp4(scale.module)]
    own = [scale for scale in blocks if scale.plain or scale.module.group not in (_USUAL, None)]
    for (stored, group), count in Counter(map(_form, own)).items():
        first = next(scale for scale in own if _form(scale) == (stored, group))
        text = (
            f"{several(count, 'NVFP4 layer')} with {stored} scales of {group} weights: no public"
            " NVFP4 format has them, so it needs a loader of its own."
        )
        seen = first.evidence("F8_E4M3, a scale for 16 weights", f"{stored}, one for {group}")
        yield row.warn(text, seen, subject=first.info.name, count=count)
    if not blocks and not found:
        yield row.skip(_NONE)
    elif not own and not found:
        yield row.ok(f"F8_E4M3, a scale for 16 weights, in all of {len(blocks):,} layers.")


def _form(scale: Scale) -> tuple[str, str]:
    rows, columns = scale.module.group or (0, 0)
    return scale.info.dtype, f"{rows} x {columns}" if rows > 1 else str(columns)


@model_check("nvfp4-global")
def global_scales(subject: Subject, row: Row) -> Iterator[Finding]:
    """Presence and type as the rows of formats ask, and the values."""
    found = faults(subject, row)
    held = [scale for scale in scales_of(subject, "global") if in_nvfp4(scale.module)]
    found += [told for scale in held for told in _global(subject, row, scale)]
    yield from found
    if found:
        return
    if held:
        yield row.ok(f"{several(len(held), 'global scale')}, all read: F32, positive and finite.")
    elif any(map(in_nvfp4, subject.checkpoint.modules.values())):
        yield row.ok("The NVFP4 layers are in a form without global scales.")
    else:
        yield row.skip(_NONE)


def _global(subject: Subject, row: Row, scale: Scale) -> Iterator[Finding]:
    name, values = scale.info.name, scale.values
    if values is None or not values.read:
        reason = subject.scales.unread.get(name, "its type is not that of a scale")
        yield row.unknown(f"The global scale could not be read: {reason}.", subject=name)
        return
    told = f"{values.low:g}" if values.low is not None else "nothing finite"
    for count, what in (
        (values.nans, "not finite"),
        (values.zeros, "zero"),
        (values.negatives, "negative"),
    ):
        if count:
            text = f"The global scale is {what}: all of the layer's weights are wrong."
            shown = "NaN or infinity" if values.nans else told
            yield row.fail(text, scale.evidence("above zero and finite", shown), subject=name)
            return
    if not scale.parameter.direction:  # of which scale-direction tells
        return
    divides = scale.parameter.direction == "divide"
    low, high = values.low or 0.0, values.high or 0.0
    if low <= 1 if divides else high >= 1:
        usual, does = ("above 1", "divides") if divides else ("below 1", "multiplies")
        text = (
            f"The global scale is unusual: {scale.parameter.name} {does}, and is {usual} elsewhere."
            " By its name it is right; see scale-direction."
        )
        yield row.warn(text, scale.evidence(usual, told), subject=name)


@model_check("scale-range")
def values_of_scales(subject: Subject, row: Row) -> Iterator[Finding]:
    """Scales of blocks, rows and tensors; NVFP4's global ones have a check of their own."""
    held = [
        scale
        for scale in scales_of(subject, "scale", "global", "columns")
        if scale.parameter.role != "global" or not in_nvfp4(scale.module)
    ]
    if not held:
        yield row.skip("No tensor of scales is in this checkpoint.")
        return
    inputs = [_of_inputs(row, scale) for scale in scales_of(subject, "activation")]
    odd = [scale for scale in held if _is_odd(scale) or scale.info.name in subject.scales.unread]
    found = [told for scale in odd for told in _values(subject, row, scale)]
    found += _seldom(row, odd)
    found += folded(subject, row)
    found += [told for told in inputs if told]
    yield from found
    if not found:
        yield row.ok(f"Finite and positive. {looked(subject.scales)}.")


def _of_inputs(row: Row, scale: Scale) -> Finding | None:
    """Say what is wrong with a scale of activations, which the weights do without."""
    values = scale.values
    if values is None or not (values.nans or values.zeros or values.negatives):
        return None
    what = "NaN or infinity" if values.nans else "0" if values.zeros else f"{values.low:g}"
    text = (
        f"The scale of the layer's inputs is {what}: an engine that quantises activations computes"
        " NaN or zeros with it. Where they stay FP16, as on Volta, it is left unread."
    )
    seen = scale.evidence("above zero and finite", what)
    make = row.fail if values.nans else row.warn
    return make(text, seen, subject=scale.info.name)


def _is_odd(scale: Scale) -> bool:
    values = scale.values
    return values is not None and bool(
        values.nans or values.zeros or values.negatives or values.subnormals
    )


def _values(subject: Subject, row: Row, scale: Scale) -> Iterator[Finding]:
    """What makes the weights of one tensor wrong."""
    name, values = scale.info.name, scale.values
    if reason := subject.scales.unread.get(name):
        yield row.unknown(f"The scales could not be read: {reason}.", subject=name)
    if values is None or not values.read:
        return
    if values.nans:
        text = f"NaN or infinity in {values.nans:,} of {scale.looked}: its weights are NaN."
        yield row.fail(text, scale.evidence("finite", "NaN or infinity"), subject=name)
    if values.zeros == values.read and values.size > 1:
        text = (
            f"Nothing but zeros in {scale.looked}: all weights are 0. A download leaves zeros where"
            " it wrote nothing."
        )
        yield row.fail(
            text, scale.evidence("above zero", f"{values.high:g} throughout"), subject=name
        )
    elif values.zeros and values.size == 1:
        text = "The scale is 0, so all weights are."
        yield row.fail(text, scale.evidence("above zero", "0"), subject=name)
    if values.negatives and not _integers(scale) and scale.parameter.role == "scale":
        text = f"Negative scales, {values.negatives:,} in {scale.looked}: kernels take them for" + (
            " positive. In MixFP4 (compressed-tensors #687) a sign says which codes a group has; no"
            " engine for Volta reads that."
            if in_nvfp4(scale.module)
            else " positive ones, or give weights of the wrong sign."
        )
        found = f"{values.low:g} to {values.high:g}"
        yield row.fail(text, scale.evidence("above zero", found), subject=name)


def _seldom(row: Row, held: list[Scale]) -> Iterator[Finding]:
    """What is worth knowing of all tensors together."""
    read = [(scale, scale.values) for scale in held if scale.values]
    zeros = [(scale, v.zeros) for scale, v in read if 0 < v.zeros < v.read]
    small = [(scale, v.subnormals) for scale, v in read if v.subnormals]
    signs = [(scale, v.negatives) for scale, v in read if v.negatives and _integers(scale)]
    for odd, text in (
        (zeros, "are zero: their groups of weights are 0, as of padding or of experts never used"),
        (small, "are subnormal in their type: they have fewer bits, in groups of small weights"),
        (signs, "are negative beside integer codes, as AutoRound writes them: they are right"),
    ):
        if not odd:
            continue
        first, count = max(odd, key=lambda pair: pair[1])
        total = sum(number for _, number in odd)
        values = first.values
        seen = values.read if values else 0
        shown = first.evidence("few or none", f"{count:,} of {seen:,} that were read")
        text = f"{total:,} of the scales that were read, in {several(len(odd), 'tensor')}, {text}."
        yield row.info(text, shown, subject=first.info.name, count=total)


def _integers(scale: Scale) -> bool:
    row = scale.module.format
    return row is not None and row.codes.dtypes[0].startswith("I")
