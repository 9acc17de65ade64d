"""What was reported of V100s, held against what is worked out for the same set-up."""

import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from models import checkpoint as made
from models import linear_in, memory_plan, shapes

from volta_doctor.catalog import compat
from volta_doctor.catalog.engines import engines
from volta_doctor.preflight.subject import Cards
from volta_doctor.sizing.speed import speed
from volta_runtime.checkpoint.architecture import from_config

TABLE = yaml.safe_load(Path(__file__).with_name("reports.yaml").read_text())
CONFIGS = Path(__file__).parents[2] / "data/runtime/architectures"
MIB, NEAR = 2**20, 0.10


def q4_k(name, shape, ssm="gguf-q4_k"):
    """llama-quantize's Q4_K_M: Q6_K for the head, and for values and down in half the layers."""
    if len(shape) < 2 or "conv1d" in name or name.endswith(".gate"):
        return "gguf-f32"
    layer = [int(part) for part in name.split(".") if part.isdigit()]
    better = name.endswith(("v_proj", "down_proj")) and layer[0] % 2 == 0
    if name == "lm_head" or better:
        return "gguf-q6_k"
    return ssm if "linear_attn" in name else "gguf-q4_k"


def ggml(row, head="gguf-q6_k"):
    def format_of(name, shape):
        small = len(shape) < 2 or "conv1d" in name or name.endswith(".gate")
        return "gguf-f32" if small else head if ".layers." not in name else row

    return format_of


def nvfp4_fp8(name, shape):
    """ModelOpt's MIXED_PRECISION: attention in FP8, the rest and the head in NVFP4."""
    if len(shape) != 2 or name.endswith(("embed_tokens", "in_proj_a", "in_proj_b")):
        return "dense"
    return "modelopt-nvfp4" if ".mlp." in name or name == "lm_head" else "modelopt-fp8"


def gpt_oss(name, shape):
    experts = "gguf-mxfp4" if ".experts." in name else "gguf-q8_0"
    return "gguf-f32" if len(shape) < 2 else experts


FORMS = {
    "fp16": linear_in("dense"),
    "mxfp4": gpt_oss,
    "q2_k_m": ggml("gguf-q2_k"),
    "q3_k_s": ggml("gguf-q3_k"),
    "q4_0": ggml("gguf-q4_0"),
    "q4_k_m": q4_k,
    "q4_k_m_ssm8": lambda name, shape: q4_k(name, shape, "gguf-q8_0"),
    "q6_k": ggml("gguf-q6_k"),
    "q8_0": ggml("gguf-q8_0", "gguf-q8_0"),
    "iq4_xs": ggml("gguf-iq4_xs"),
    "nvfp4": linear_in("nvfp4-pack-quantized"),
    "nvfp4_fp8": nvfp4_fp8,
    "awq": linear_in("awq"),
    "int4": linear_in("pack-quantized-int4"),
}


@cache
def checkpoint(model, form):
    row = TABLE["models"][model]
    config = json.loads((CONFIGS / f"{row['file']}.json").read_text()) if "file" in row else {}
    config.get("text_config", config).pop("layer_types", None)
    config.setdefault("text_config", {}).update(row.get("with", {})) if config else None
    a = from_config(config or row["with"])
    names = shapes(a, gated=a.linear_value_heads > 0)
    if "tower" in row:
        names["model.visual.blocks.0.mlp.linear_fc1"] = (row["tower"] // 1000, 1000)
    return made(a, names, FORMS[form])


def plans(report):
    model, form, engine, card = report["of"]
    how = {"concurrency": 1} | report["how"]
    row, told = compat().cards[card], checkpoint(model, form)
    count = how.get("tensor_parallel", 1)
    cards = Cards(card, (row.memory,) * count, (0,) * count, "--gpu")
    memory = memory_plan(told, engines()[engine], cards, **how)
    how.pop("utilization", None)
    return memory, speed(told, engines()[engine], row, **how)


def sizes(key, memory, how):
    """What is worked out of a figure that is a size: one, or one of each GPU."""
    first = memory.gpus[0]
    asked = first.kv_cache + first.state
    if key == "used_mib":
        return [gpu.total / MIB for gpu in memory.gpus]
    if key == "weights_mib":
        return [(first.weights + first.embeddings) / MIB]
    if key == "request_mib":
        return [asked / MIB]
    left = memory.budget[0] - first.total + asked
    return [left / asked * how["context"] * how.get("concurrency", 1)]  # kv_tokens


def cases():
    for name, report in TABLE["reports"].items():
        for key in report["seen"]:
            why = report.get("miss", {}).get(key)
            marks = [pytest.mark.xfail(strict=True, reason=why)] if why else []
            yield pytest.param(report, key, id=f"{name}: {key}", marks=marks)


@pytest.mark.parametrize(("report", "key"), list(cases()))
def test_a_report_is_met(report, key):
    memory, found = plans(report)
    seen = report["seen"][key]
    if key == "fits":
        assert memory.fits == seen
    elif key in ("decode", "decode_all", "prefill"):
        ends = getattr(found, key)
        assert ends.high < 5 * ends.low
        for figure in seen if isinstance(seen, list) else [seen]:
            assert ends.low <= figure <= ends.high
    else:
        assert sizes(key, memory, report["how"]) == pytest.approx(
            seen if isinstance(seen, list) else [seen], rel=NEAR
        )
