"""auto-round: whole numbers in the layout of GPTQ, without g_idx, or of AWQ; packing_format says.

extra_config names modules that differ, or patterns to be searched in names; 16 bits leave a module
unquantised. Source: intel/auto-round export/export_to_autoround; vllm quantization/inc.
"""

from dataclasses import replace

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import ALL, Reading
from volta_runtime.checkpoint.quantization.targets import Entry
from volta_runtime.checkpoint.scheme import Scheme

_PATTERN = frozenset("*+?^$()[]{}|\\")  # a name with one of these is a pattern (vLLM)
_DENSE = 16  # bits


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    # Releases before 0.4 named the kernel with the packing, in `backend`.
    packing = fields.text("packing_format", "backend").lower()
    kind = fields.text("data_type") or "int"
    name = "awq" if "awq" in packing else "gptq"
    if kind != "int" or "llm_compressor" in packing:
        name = f"{packing or 'auto_round'} of {kind}"
        known = ["auto_round:auto_gptq of int", "auto_round:auto_awq of int"]
        fields.unknown("packing_format", name, known)
    base = Scheme(name, fields.file, fields.where, act_order=False, blanket=True)
    scheme = _scheme(fields, base)
    groups: dict[Scheme | None, list[Entry]] = {}
    if extra := fields.inside("extra_config"):
        for module in extra.data:
            if own := extra.inside(module):
                bits = own.number("bits")
                dense = bits is not None and bits >= _DENSE
                chosen = None if dense else _scheme(own, replace(scheme, where=extra.where))
                groups.setdefault(chosen, []).append(_entry(module))
    return Reading([*((entries, chosen) for chosen, entries in groups.items()), (ALL, scheme)])


def _entry(module: str) -> Entry:
    if _PATTERN.isdisjoint(module):
        return Entry("exact", module)
    return Entry("pattern", f".*(?:{module})", module)


def _scheme(fields: Fields, base: Scheme) -> Scheme:
    bits, size, symmetric = fields.number("bits"), fields.number("group_size"), fields.flag("sym")
    return replace(
        base,
        bits=bits or base.bits,
        group=base.group if size is None else (1, size) if size > 0 else (1, 0),
        symmetric=base.symmetric if symmetric is None else symmetric,
    )
