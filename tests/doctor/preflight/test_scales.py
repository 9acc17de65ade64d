"""Each fault of scales in a small checkpoint of each form is named with tensor, file and values."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import Spec
from scale_forms import FORMS, K_PROJ, PARTS, SCALE, K, N, Q, bf16, f16, f32, make

from volta_doctor.catalog.engines import engines
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Finding, Status
from volta_doctor.preflight.judge import examine
from volta_doctor.preflight.subject import Subject
from volta_runtime.checkpoint import inspect
from volta_runtime.checkpoint.scales import read_scales

OWN = [row.id for row in model_checks().values() if row.area == "scales"]


def subject(directory: Path, engine: str = "", everything: bool = False, **flags: Any) -> Subject:
    checkpoint = inspect(directory)
    chosen = engines()[engine] if engine else None
    return Subject(checkpoint, read_scales(checkpoint, everything), chosen, Flags(**flags))


def judged(seen: Subject, check_id: str) -> list[Finding]:
    return examine(seen, model_checks()[check_id])


def texts(finding: Finding) -> str:
    return " ".join([finding.message, *(evidence.text for evidence in finding.evidence)])


@pytest.mark.parametrize("form", FORMS)
def test_valid_checkpoints_have_no_fault(form: str, tmp_path: Path) -> None:
    seen = subject(make(tmp_path, form))
    for check_id in OWN:
        for finding in judged(seen, check_id):
            allowed = [Status.OK, Status.SKIP]
            if form == "nvfp4-g32" and check_id == "nvfp4-scale":
                allowed = [Status.WARN]  # no public form, so it needs its own loader
            assert finding.status in allowed, finding


LIBRARIES = sorted((Path(__file__).parents[2] / "data/checkpoints").glob("*/model.*"))


@pytest.mark.parametrize("file", LIBRARIES, ids=lambda file: file.parent.name)
def test_what_the_formats_own_libraries_wrote_has_no_fault(file: Path) -> None:
    seen = subject(file if file.suffix == ".gguf" else file.parent)
    found = [finding for check_id in OWN for finding in judged(seen, check_id)]
    # Its writer gave each part of a fused layer a scale of its own, which some engines lose.
    fused = {"nvfp4-fused", "fused-globals-differ"} if seen.scales.values else set()
    bad = (Status.FAIL, Status.WARN, Status.UNKNOWN)
    assert {finding.id for finding in found if finding.status in bad} <= fused


def _odd(form: str, values: bytes) -> dict[str, Spec]:
    """The first scales of q_proj replaced."""
    dtype, shape, data = FORMS[form][0][SCALE[form]]
    return {f"{Q}.{SCALE[form]}": (dtype, shape, values + data[len(values) :])}


# NaN and infinity, negative, all zero: in the bytes of each type.
NAN = {"F8_E4M3": b"\x7f", "U8": b"\xff", "F32": f32(float("inf")), "BF16": b"\xc0\x7f",
       "F16": f16(float("nan"))}  # fmt: skip
BELOW = {"F8_E4M3": b"\xb8", "F32": f32(-1), "BF16": bf16(-1), "F16": f16(-1)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["nan", "negative", "zero"])
def test_values_that_make_weights_wrong(form: str, kind: str, tmp_path: Path) -> None:
    dtype, _, data = FORMS[form][0][SCALE[form]]
    if dtype == "U8" and kind == "negative":
        pytest.skip("E8M0 has no sign")
    value = {"nan": NAN.get(dtype), "negative": BELOW.get(dtype), "zero": bytes(len(data))}[kind]
    assert value is not None
    seen = subject(make(tmp_path, form, _odd(form, value)))
    (finding,) = judged(seen, "scale-range")
    assert finding.subject == f"{Q}.{SCALE[form]}"
    if kind == "negative" and form in ("awq", "gptq"):  # as AutoRound writes them
        assert finding.status is Status.INFO
        return
    assert finding.status is Status.FAIL
    assert finding.evidence[0].source.endswith("m/model.safetensors")
    expected = {
        "nan": "expected: finite, found: NaN or infinity",
        "zero": "expected: above zero, found: " + ("5.87747e-39" if dtype == "U8" else "0"),
        "negative": "expected: above zero, found: -1",
    }[kind]
    assert expected in finding.evidence[0].text
    assert "value" in finding.message or kind == "zero"


@pytest.mark.parametrize("form", ["nvfp4-pack-quantized", "modelopt-nvfp4"])
@pytest.mark.parametrize(
    ("value", "status", "found"),
    [
        (0.0, Status.FAIL, "found: 0"),
        (-1.0, Status.FAIL, "found: -1"),
        (float("nan"), Status.FAIL, "found: NaN or infinity"),
        (float("inf"), Status.FAIL, "found: NaN or infinity"),
        (1.0, Status.WARN, "found: 1"),
    ],
)
def test_global_scales(form: str, value: float, status: Status, found: str, tmp_path: Path) -> None:
    name = "weight_global_scale" if form == "nvfp4-pack-quantized" else "weight_scale_2"
    dtype, shape, _ = FORMS[form][0][name]
    path = make(tmp_path, form, {f"{Q}.{name}": (dtype, shape, f32(value))})
    (finding,) = judged(subject(path), "nvfp4-global")
    assert (finding.status, finding.subject) == (status, f"{Q}.{name}")
    assert finding.evidence[0].text.endswith(found)


@pytest.mark.parametrize("form", ["nvfp4-pack-quantized", "modelopt-nvfp4"])
@pytest.mark.parametrize("dtype", ["", "F16"])
def test_global_scale_missing_or_of_another_type(form: str, dtype: str, tmp_path: Path) -> None:
    name = "weight_global_scale" if form == "nvfp4-pack-quantized" else "weight_scale_2"
    value = f16(1000.0 if name == "weight_global_scale" else 0.001)
    change: Spec | None = (dtype, FORMS[form][0][name][1], value) if dtype else None
    (finding,) = judged(subject(make(tmp_path, form, {f"{Q}.{name}": change})), "nvfp4-global")
    assert finding.status is Status.FAIL
    assert Q in finding.subject
    assert "F32" in texts(finding)
    assert (dtype or "no such tensor") in texts(finding)


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (("BF16", [N, K // 16]), "BF16"),
        (("F8_E4M3", [N, K // 32]), f"[{N}, {K // 32}]"),
        (("U8", [128 * 8]), "[1024]"),
    ],
)
def test_block_scales_of_another_type_or_shape(spec: Spec, found: str, tmp_path: Path) -> None:
    path = make(tmp_path, "nvfp4-pack-quantized", {f"{Q}.weight_scale": spec})
    (finding,) = judged(subject(path), "nvfp4-scale")
    assert (finding.status, finding.subject) == (Status.FAIL, f"{Q}.weight_scale")
    assert found in texts(finding)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spec", [None, ("I32", [2, 2]), ("F32", [3, 5, 7])])
def test_a_scale_that_is_missing_or_of_another_type_or_shape(
    form: str, spec: Spec | None, tmp_path: Path
) -> None:
    path = make(tmp_path, form, {f"{Q}.{SCALE[form]}": spec})
    faults = [fault for fault in inspect(path).faults if fault.level == "fail"]
    assert any(Q in fault.tensor and fault.expected and fault.found for fault in faults), faults


def test_a_factor_of_inputs_that_is_not_finite(tmp_path: Path) -> None:
    factors = bf16(1.0) * (K - 1) + NAN["BF16"]
    changes: dict[str, Spec] = {
        f"model.layers.0.{part}.pre_quant_scale": ("BF16", [K], bf16(1.0) * K) for part in PARTS
    }
    changes[f"{Q}.pre_quant_scale"] = ("BF16", [K], factors)
    path = make(tmp_path, "modelopt-nvfp4", changes, quant_algo="NVFP4_AWQ")
    (finding,) = judged(subject(path), "scale-range")
    assert (finding.status, finding.subject) == (Status.FAIL, f"{Q}.pre_quant_scale")
    assert "1 of all 128 values" in finding.message


FUSED = [
    ("", 1.05, Status.WARN),
    ("", 2.0, Status.WARN),
    ("1cat-vllm", 1.05, Status.WARN),
    ("1cat-vllm", 2.0, Status.FAIL),
    ("embedded", 2.0, Status.OK),
]


@pytest.mark.parametrize(("engine", "times", "status"), FUSED)
def test_parts_of_a_layer_with_other_globals(
    engine: str, times: float, status: Status, tmp_path: Path
) -> None:
    other: Spec = ("F32", [1], f32(2688 * times))
    path = make(tmp_path, "nvfp4-pack-quantized", {f"{K_PROJ}.weight_global_scale": other})
    seen = subject(path, engine)
    (finding,) = judged(seen, "nvfp4-fused")
    assert finding.status is (Status.INFO if engine == "embedded" else Status.WARN)
    assert f"q_proj 2688, k_proj {2688 * times:.4g}, v_proj 2688" in finding.message
    (finding,) = judged(seen, "fused-globals-differ")
    assert finding.status is status
    if status is not Status.OK:
        assert "1Cat-vLLM" in finding.message
        assert f"a factor of {times:.2f}" in finding.message
        assert f"{K_PROJ}.weight_global_scale = {2688 * times:.6g}" in texts(finding)


def test_an_engine_of_which_nothing_is_known_gets_no_ok(tmp_path: Path) -> None:
    other: Spec = ("F32", [1], f32(5000))
    path = make(tmp_path, "nvfp4-pack-quantized", {f"{K_PROJ}.weight_global_scale": other})
    (finding,) = judged(subject(path, "vllm"), "fused-globals-differ")
    assert finding.status is Status.UNKNOWN


SEED = [
    ("F32", "fp32", None, Status.OK),
    ("F32", "fp32", "half", Status.WARN),
    ("F32", "fp32", "float32", Status.OK),
    ("BF16", "bf16", None, Status.WARN),
    ("BF16", "bf16", "float16", Status.FAIL),
    ("BF16", "fp32", None, Status.FAIL),  # stored otherwise than declared
]


@pytest.mark.parametrize(("stored", "declared", "dtype", "status"), SEED)
def test_plain_scales_against_config_and_dtype(
    stored: str, declared: str, dtype: str | None, status: Status, tmp_path: Path
) -> None:
    one = f32(0.01) if stored == "F32" else bf16(0.01)
    spec: Spec = (stored, [N, K // 32], one * (N * K // 32))
    changes = {f"model.layers.0.{part}.weight_scale": spec for part in PARTS}
    path = make(tmp_path, "nvfp4-g32", changes, scale_dtype=declared)
    worst = judged(subject(path, dtype=dtype), "scale-dtype")[0]
    assert worst.status is status
    if status is not Status.OK:
        assert worst.subject == f"{Q}.weight_scale"
        assert stored in texts(worst)


@pytest.mark.parametrize(
    ("value", "status", "found"),
    [(70_000.0, Status.FAIL, "up to 7e+04"), (1e-7, Status.WARN, "down to 1e-07")],
)
@pytest.mark.parametrize("form", ["fp8-tensor", "fp8-block", "nvfp4-g32"])
def test_scales_that_half_does_not_hold(
    form: str, value: float, status: Status, found: str, tmp_path: Path
) -> None:
    path = make(tmp_path, form, _odd(form, f32(value)))
    finding = judged(subject(path, dtype="half"), "scale-dtype")[0]
    assert (finding.status, finding.subject) == (status, f"{Q}.{SCALE[form]}")
    assert found in texts(finding)


@pytest.mark.parametrize(
    ("engine", "scale", "times", "status"),
    [
        ("1cat-vllm", b"\x70", 1.0, Status.OK),  # 128 / 2688 = 0.05
        ("1cat-vllm", b"\x28", 2.0, Status.INFO),  # 0.25 / 5376 = 4.7e-5, subnormal in FP16
        ("1cat-vllm", b"\x10", 64.0, Status.WARN),  # 0.03 / 172032 = 1.8e-7, of 1 bit
        ("embedded", b"\x10", 64.0, Status.OK),
        ("vllm", b"\x10", 64.0, Status.UNKNOWN),
        ("", b"\x10", 64.0, Status.WARN),
    ],
)
def test_products_that_an_engine_rounds_to_half(
    engine: str, scale: bytes, times: float, status: Status, tmp_path: Path
) -> None:
    path = make(
        tmp_path,
        "nvfp4-pack-quantized",
        {
            **_odd("nvfp4-pack-quantized", scale),
            f"{Q}.weight_global_scale": ("F32", [1], f32(2688 * times)),
        },
    )
    (finding,) = judged(subject(path, engine), "scale-range")
    assert finding.status is status
    if status in (Status.INFO, Status.WARN):
        assert "1Cat-vLLM" in finding.message
        assert "products down to" in texts(finding)


@pytest.mark.parametrize(
    ("value", "status"),
    [(b"\x71", Status.OK), (b"\x70", Status.INFO), (b"\x66", Status.WARN), (b"\x8f", Status.WARN)],
)
def test_e8m0_beyond_half(value: bytes, status: Status, tmp_path: Path) -> None:
    form = "mxfp4-pack-quantized"
    (finding,) = judged(subject(make(tmp_path, form, _odd(form, value)), "lmdeploy"), "scale-range")
    assert finding.status is status


def test_single_zeros_and_subnormals_are_told(tmp_path: Path) -> None:
    form = "nvfp4-pack-quantized"
    zeros, small = judged(subject(make(tmp_path, form, _odd(form, b"\0\0\x07"))), "scale-range")[:2]
    assert (zeros.status, zeros.count) == (Status.INFO, 2)
    assert (small.status, small.count) == (Status.INFO, 1)


def test_what_was_read_is_told(tmp_path: Path) -> None:
    rows = 1 << 21  # 16 MiB of scales, and a little more in other tensors
    large: dict[str, Spec] = {
        f"{Q}.weight_packed": ("U8", [rows, K // 2]),
        f"{Q}.weight_scale": ("F8_E4M3", [rows, K // 16], b"\x38" * rows * (K // 16)),
    }
    path = make(tmp_path, "nvfp4-pack-quantized", large)
    (sampled,) = judged(subject(path), "scale-range")
    assert sampled.status is Status.OK
    assert "of 16,778,768 bytes of scales were read: all scalars" in sampled.message
    (whole,) = judged(subject(path, everything=True), "scale-range")
    assert "All scales were read (16,778,768 bytes)" in whole.message
    large[f"{Q}.weight_scale"] = (*large[f"{Q}.weight_scale"][:2], b"\x7f" * rows * (K // 16))
    (failed,) = judged(subject(make(tmp_path, "nvfp4-pack-quantized", large)), "scale-range")
    assert "values, read at even distances" in failed.message


def test_scales_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    path = make(tmp_path, "nvfp4-pack-quantized")
    checkpoint = inspect(path)
    (path / "model.safetensors").unlink()
    gone = Subject(checkpoint, read_scales(checkpoint))
    for check_id in ("scale-range", "nvfp4-global", "nvfp4-fused", "fused-globals-differ"):
        found = judged(gone, check_id)
        assert {finding.status for finding in found} == {Status.UNKNOWN}
    assert "No such file or directory" in judged(gone, "scale-range")[0].message
