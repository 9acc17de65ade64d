"""The KV cache that a checkpoint was made for, and the one that it is served with."""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.catalog.engines import Engine, engines
from volta_doctor.catalog.engines import KvCache as KvType
from volta_doctor.findings import Evidence, Finding
from volta_doctor.preflight.checks._faults import faults
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.subject import Subject
from volta_runtime.checkpoint.quantization import KvCache

_SAME = {"fp8": ("fp8", "fp8_e4m3")}  # the flag's words for what a config declares
_ADOPTED = {"fp8": "fp8_e4m3"}  # what an engine takes for it where the flag says nothing


@model_check("kv-scheme-conflict")
def scheme(subject: Subject, row: Row) -> Iterator[Finding]:
    """kv_cache_scheme and kv_cache_quant_algo against each other and against the flag."""
    found = faults(subject, row)
    yield from found
    declared = subject.checkpoint.quantization.kv_caches
    if found:
        return
    if not declared:
        yield row.ok("No config declares a type of the KV cache.")
        return
    yield _against(row, declared[0], subject.flags.kv_cache_dtype, subject.engine)


def _against(row: Row, kv: KvCache, flag: str | None, engine: Engine | None) -> Finding:
    seen = Evidence(str(kv.file), f"{kv.where}: {kv.dtype}")
    if flag not in (None, "auto"):
        if flag in _SAME.get(kv.dtype, (kv.dtype,)):
            return row.ok(f"The config and --kv-cache-dtype say {flag}.", seen)
        text = f"The stored scales are for {kv.dtype}, and --kv-cache-dtype is {flag}."
        return row.warn(text, seen, subject=kv.file.name)
    adopted = _ADOPTED.get(kv.dtype, kv.dtype)
    unset = "without --kv-cache-dtype" if flag is None else "with --kv-cache-dtype auto"
    if engine is None:
        who = " and ".join(row.title for row in engines().values() if _type(row, adopted))
        text = f"The config declares {kv.dtype}, which {who} adopt as {adopted} {unset}."
        return row.warn(text, seen, subject=kv.file.name)
    taken = _type(engine, adopted)
    if taken is None:
        return row.ok(
            f"The config declares {kv.dtype}, of which {engine.title} takes no notice.", seen
        )
    text = f"The config declares {kv.dtype}, so {engine.title} takes {adopted} {unset}"
    if taken.runs:
        return row.warn(f"{text}: {taken.note or 'it runs'}.", seen, subject=kv.file.name)
    return row.fail(f"{text}, and ends with: {taken.says}", seen, subject=kv.file.name)


def _type(engine: Engine, name: str) -> KvType | None:
    """An engine's row of a type, where its flag knows "auto", which adopts what configs declare."""
    rows = {row.name: row for row in engine.kv_cache}
    return rows.get(name) if "auto" in rows else None
