"""Checks of quantisation: what the published layouts get, and what a fault in them gets."""

from pathlib import Path

import field_checkpoints as field
import pytest

from volta_doctor.catalog.engines import engines
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Status
from volta_doctor.preflight.judge import examine
from volta_doctor.preflight.subject import Subject
from volta_runtime.checkpoint import inspect
from volta_runtime.checkpoint.scales import read_scales

OWN = [row.id for row in model_checks().values() if row.area == "quant"]
MAKERS = (
    field.quasar,
    field.unsloth,
    field.radixark,
    field.nvidia_27b,
    field.nvidia_35b,
    field.flash_next,
    field.reexport,
)


def subject(path: Path, engine: str = "", **flags) -> Subject:
    checkpoint = inspect(path)
    scales = read_scales(checkpoint)
    return Subject(checkpoint, scales, engines().get(engine), Flags(**flags))


def found(path: Path, check: str, engine: str = "", **flags):
    return examine(subject(path, engine, **flags), model_checks()[check])


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_published_layout_has_no_fail(tmp_path: Path, make):
    judged = subject(make(tmp_path / "m", layers=16))
    findings = {check: examine(judged, model_checks()[check]) for check in OWN}
    problems = {
        check: [finding.status for finding in those]
        for check, those in findings.items()
        if any(f.status not in (Status.OK, Status.SKIP, Status.INFO) for f in those)
    }
    kv = {"kv-scheme-conflict": [Status.WARN]}  # declared FP8, and no engine is named
    assert problems in ({}, kv)


def test_what_was_looked_at_is_told(tmp_path: Path):
    judged = subject(field.unsloth(tmp_path / "m"))
    told = {check: examine(judged, model_checks()[check])[0].message for check in OWN}
    assert told["quant-config"] == "Read from config.json (compressed-tensors)."
    assert told["quant-conflict"].startswith("401 quantised modules of ")
    assert told["group-size-config"] == "168 modules in groups of 16."
    assert told["scale-direction"] == "168 modules to divide by their global scales."


def test_a_fault_names_both_sides(tmp_path: Path):
    path = field.unsloth(tmp_path / "m", layers=16)
    field.edit(path, lambda c: c["quantization_config"]["ignore"].append("lm_head"))
    [finding] = found(path, "quant-conflict")
    assert (finding.status, finding.subject) == (Status.FAIL, "lm_head")
    assert finding.evidence[0].source.endswith("config.json")
    assert finding.evidence[0].text == "expected: dense, found: fp8-channel"


def test_attention_in_4_bits_is_a_note(tmp_path: Path):
    [note] = found(field.quasar(tmp_path / "q", layers=16), "attn-4bit")
    assert (note.status, note.count) == (Status.INFO, 4 * 4 + 12 * 5)
    [fine] = found(field.radixark(tmp_path / "r", layers=16), "attn-4bit")
    assert fine.status is Status.OK


@pytest.mark.parametrize(
    ("engine", "flag", "status", "words"),
    [
        ("", None, Status.WARN, "1Cat-vLLM and vLLM adopt as fp8_e4m3 without --kv-cache-dtype"),
        ("vllm", None, Status.FAIL, "type fp8e4nv not supported in this architecture"),
        ("vllm", "auto", Status.FAIL, "with --kv-cache-dtype auto"),
        ("1cat-vllm", None, Status.WARN, "takes fp8_e4m3"),
        ("embedded", None, Status.OK, "takes no notice"),
        ("llamacpp", None, Status.OK, "takes no notice"),
        ("1cat-vllm", "fp8_e5m2", Status.WARN, "--kv-cache-dtype is fp8_e5m2"),
        ("1cat-vllm", "fp8_e4m3", Status.OK, "say fp8_e4m3"),
    ],
)
def test_the_cache_that_was_declared(tmp_path: Path, engine, flag, status, words):
    path = field.radixark(tmp_path / "m", layers=4)  # declared in hf_quant_config.json alone
    [finding] = found(path, "kv-scheme-conflict", engine, kv_cache_dtype=flag)
    assert finding.status is status
    assert words in finding.message
    assert finding.evidence[0].source.endswith("hf_quant_config.json")


def test_no_cache_is_declared(tmp_path: Path):
    path = field.flash_next(tmp_path / "m", layers=4)
    [finding] = found(path, "kv-scheme-conflict", "vllm", kv_cache_dtype="fp8_e5m2")
    assert finding.status is Status.OK


def test_without_tensors_nothing_is_ok(tmp_path: Path):
    path = field.quasar(tmp_path / "m", layers=4)
    names = '{"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}'
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(names)
    for check in OWN:
        if check in ("quant-config", "kv-scheme-conflict"):
            continue
        [finding] = found(path, check)
        assert finding.status is Status.UNKNOWN, check
