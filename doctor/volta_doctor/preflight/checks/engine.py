"""Does an engine run this model on sm_70: formats, dtype, attention and KV cache."""

from collections.abc import Iterable

from volta_doctor.attention_backends import NEWER_GPU
from volta_doctor.catalog import Row
from volta_doctor.catalog.engines import Engine, KvCache, engines
from volta_doctor.findings import Evidence, Finding
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.running import Obstacle, obstacles, reserves
from volta_doctor.preflight.subject import Subject
from volta_doctor.words import few, several

_BF16 = ("bfloat16", "bf16")
_E4M3 = ("fp8", "fp8_e4m3")


@model_check("quant-volta")
def runs(subject: Subject, row: Row) -> Iterable[Finding]:
    """Hold every module against the rows of the engine that is named, else of all of them."""
    engine, checkpoint = subject.engine, subject.checkpoint
    if engine is None:
        return [_by_any(subject, row)]
    found = obstacles(checkpoint, engine)
    if certain := [one for one in found if one.certain]:
        return [row.fail(_ends(engine, one), *one.evidence, subject=one.subject) for one in certain]
    if found:
        return [row.unknown(_ends(engine, one), subject=one.subject) for one in found]
    notes = reserves(checkpoint, engine)
    formats = few(sorted({m.format.name for m in checkpoint.modules.values() if m.format}))
    text = f"{engine.title} {engine.version} runs {formats}."
    if notes:
        return [row.info(f"{text} {'; '.join(notes)}.")]
    return [row.ok(text)]


def _ends(engine: Engine, obstacle: Obstacle) -> str:
    return f"{engine.title}: {obstacle.sentence}"


def _by_any(subject: Subject, row: Row) -> Finding:
    """Say which engines run it, and what each of the others ends with."""
    found = {engine.title: obstacles(subject.checkpoint, engine) for engine in engines().values()}
    able = [title for title, obstacle in found.items() if not obstacle]
    evidence = [Evidence(title, one.sentence) for title, ones in found.items() for one in ones[:1]]
    if able:
        text = f"{few(able)} {'runs' if len(able) == 1 else 'run'} it on sm_70"
        others = [title for title in found if title not in able]
        return row.ok(f"{text}; {few(others)} not." if others else f"{text}.", *evidence)
    open_ones = [title for title, ones in found.items() if not any(o.certain for o in ones)]
    if open_ones:
        text = f"No engine is known to run it on sm_70; {few(open_ones)} may."
        return row.unknown(text, *evidence)
    first = next(iter(found.values()))[0]
    return row.fail(
        "No engine of the catalogue runs it on sm_70.", *evidence, subject=first.subject
    )


@model_check("bf16")
def float16(subject: Subject, row: Row) -> Finding:
    """Volta has no bfloat16, and float16 has not its range."""
    dtype = (subject.flags.dtype or "auto").lower()
    if dtype in _BF16:
        return row.fail(f"--dtype is {dtype}, which no Volta card has.")
    tensors = subject.checkpoint.contents.tensors.values()
    stored = [info for info in tensors if info.dtype == "BF16"]
    if stored:
        seen = Evidence(str(stored[0].file), f"{stored[0].name}: BF16")
        text = f"{several(len(stored), 'tensor')} of {len(tensors)} are BF16"
    elif subject.checkpoint.architecture.dtype == "BF16":
        seen = Evidence(str(subject.checkpoint.path / "config.json"), "dtype bfloat16")
        text = "Made for bfloat16"
    else:
        return row.ok("Nothing of it is in bfloat16.")
    return row.warn(f"{text}: values above 65504 overflow in float16.", seen)


@model_check("attn-kv")
def attention(subject: Subject, row: Row) -> Finding:
    """A backend for a newer GPU dies when it starts; a type of cache at the first request."""
    backend = (subject.flags.attention_backend or "").upper()
    if library := NEWER_GPU.get(backend):
        return row.fail(f"The attention backend is {backend}: {library} does not run on Volta.")
    asked = subject.flags.kv_cache_dtype or "auto"
    shown = f"attention backend {backend}" if backend else "no attention backend is chosen"
    if asked == "auto":
        return row.ok(f"{shown[0].upper()}{shown[1:]}, and the engine's own KV cache.")
    if subject.engine is None:
        return row.skip(f"Name an engine to have its KV cache {asked} judged.")
    cache = subject.engine.cache(asked)
    if cache is None:
        known = few([one.name for one in subject.engine.kv_cache])
        return row.unknown(
            f"{subject.engine.title} is not known to have a KV cache {asked}: {known}."
        )
    if not cache.runs:
        return row.fail(f"{subject.engine.title} with KV cache {asked}: {cache.says}.", _of(cache))
    if cache.bytes < 2:
        note = f": {cache.note}" if cache.note else ""
        return row.info(f"KV cache {asked} holds less than FP16 does{note}.", _of(cache))
    return row.ok(f"KV cache {asked}; {shown}.")


@model_check("kv-cache-dtype-e4m3")
def e4m3(subject: Subject, row: Row) -> Finding:
    """Triton compiles E4M3 for sm_89 and newer only."""
    asked, engine = (subject.flags.kv_cache_dtype or "auto").lower(), subject.engine
    if asked == "fp8_e5m2":
        return row.info("KV cache fp8_e5m2: it compiles for sm_70, with less precision than FP16.")
    if asked not in _E4M3:
        return row.ok(f"KV cache {asked}.")
    if engine is None:
        stock = engines()["vllm"].cache(asked)
        says = f": stock vLLM ends with {stock.says}" if stock else ""
        return row.warn(f"KV cache {asked} is E4M3 in most engines{says}.")
    cache = engine.cache(asked)
    if cache is None:
        return row.unknown(f"{engine.title} is not known to have a KV cache {asked}.")
    if not cache.runs:
        return row.fail(f"{engine.title} with KV cache {asked}: {cache.says}.", _of(cache))
    return row.warn(f"{engine.title} with KV cache {asked}: {cache.note}.", _of(cache))


def _of(cache: KvCache) -> Evidence:
    return Evidence("catalog/engines", f"{cache.name}: {cache.source}")
