"""gptq: bits, group_size, desc_act and sym for all, and GPTQModel's `dynamic` for some modules.

A key of `dynamic` is a regular expression from the name's start, the first that fits counts; "-:"
before it leaves the modules unquantised. Source: ModelCloud/GPTQModel quantization/config.py; vllm
quantization/utils/gptq_utils.py.
"""

from dataclasses import replace

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import ALL, Reading
from volta_runtime.checkpoint.quantization.targets import Entry, part
from volta_runtime.checkpoint.scheme import Scheme

_BITS = (2, 3, 4, 8)
_LAYOUTS = ("gptq", "gptq_v2")  # others are of one kernel, under other names (marlin: B and s)


def read(fields: Fields) -> Reading:
    """Read quantization_config, or quantize_config.json of AutoGPTQ."""
    stored = fields.text("checkpoint_format") or "gptq"
    if stored not in _LAYOUTS:
        fields.unknown("checkpoint_format", stored, _LAYOUTS)
    scheme = _scheme(
        fields,
        Scheme(
            format="gptq" if stored in _LAYOUTS else f"gptq-{stored}",
            file=fields.file,
            where=fields.where,
            blanket=True,
        ),
    )
    groups: list[tuple[list[Entry], Scheme | None]] = []
    if dynamic := _dynamic(fields):
        for pattern in dynamic.data:
            source = pattern[2:] if pattern[:2] in ("-:", "+:") else pattern
            entry = Entry("pattern", source, pattern)
            override = None if pattern.startswith("-:") else dynamic.inside(pattern)
            chosen = _scheme(override, replace(scheme, where=override.where)) if override else None
            if groups and groups[-1][1] == chosen:
                groups[-1][0].append(entry)
            else:
                groups.append(([entry], chosen))
    groups.append(([*ALL], scheme))
    skip = [part(name) for name in fields.strings("modules_to_not_convert")]
    if fields.flag("lm_head") is not True:
        skip.append(part("lm_head"))
    return Reading(groups, skip)


def _dynamic(fields: Fields) -> Fields | None:
    return None if fields.data.get("dynamic") is False else fields.inside("dynamic")


def _scheme(fields: Fields, base: Scheme) -> Scheme:
    bits, size = fields.number("bits"), fields.number("group_size")
    if bits is not None and bits not in _BITS:
        fields.wrong("bits", " or ".join(map(str, _BITS)))
    symmetric, act_order = fields.flag("sym"), fields.flag("desc_act")
    return replace(
        base,
        bits=bits if bits in _BITS else base.bits,
        group=base.group if size is None else (1, size) if size > 0 else (1, 0),
        symmetric=base.symmetric if symmetric is None else symmetric,
        act_order=base.act_order if act_order is None else act_order,
    )
