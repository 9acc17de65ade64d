"""The type of the KV cache that a checkpoint declares, and the one that the server is told."""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.model import kv_cache_dtype, modelopt, quantization
from volta_doctor.why.rules import on_volta, rule

_DECLARED = r'"kv_cache_(?:scheme|quant_algo)'
_E4M3 = ("fp8", "fp8_e4m3")


@rule("kv-scheme-conflict")
def declared_and_told(case: Case, row: Row) -> Iterator[Finding]:
    """A scheme in the config outlives the flag: its scales were made for e4m3."""
    schemes, algorithms = _schemes(case), _algorithms(case)
    if not schemes | algorithms:
        return
    places = case.lines(_DECLARED, 2)
    if schemes and algorithms and schemes.isdisjoint(algorithms):
        text = (
            f"kv_cache_scheme is {', '.join(sorted(schemes))}, kv_cache_quant_algo is"
            f" {', '.join(sorted(algorithms))}."
        )
        yield row.fail(text, *places)
    if "FP8" not in schemes | algorithms or case.card == "other":
        return
    told = kv_cache_dtype(case)
    if told is None:
        return
    if told.value == "auto":
        finding = row.fail(
            "The checkpoint declares an FP8 KV cache and --kv-cache-dtype is auto, so e4m3 is"
            " taken, which Volta's kernels do not have.",
            *dict.fromkeys([*places, *told.evidence]),
        )
        yield on_volta(case, finding)
    elif told.value not in _E4M3:
        yield row.warn(
            f"The checkpoint's KV scales were made for e4m3, --kv-cache-dtype is {told.value}.",
            *dict.fromkeys([*places, *told.evidence]),
        )


def _schemes(case: Case) -> set[str]:
    """Return what config.json declares."""
    found = set()
    for config in case.configs:
        scheme = quantization(config).get("kv_cache_scheme")
        if isinstance(scheme, dict):
            kind = "FP" if scheme.get("type") == "float" else "INT"
            found.add(f"{kind}{scheme.get('num_bits', 8)}")
    return found


def _algorithms(case: Case) -> set[str]:
    """Return what hf_quant_config.json declares."""
    named = [modelopt(config).get("kv_cache_quant_algo") for config in case.configs]
    named += [quantization(config).get("kv_cache_quant_algo") for config in case.configs]
    return {str(name).upper() for name in named if name}
