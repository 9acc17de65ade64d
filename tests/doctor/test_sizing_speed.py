"""Figures that were reported of V100s lie within the range that is worked out for their set-up."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from checkpoints import write
from models import checkpoint as made
from models import linear_in, shapes, stored

from volta_doctor.catalog import compat
from volta_doctor.catalog.engines import engines
from volta_doctor.facts.model import Missing
from volta_doctor.sizing.speed import Range, speed
from volta_runtime.checkpoint import inspect
from volta_runtime.checkpoint.architecture import Architecture, from_config

DATA = Path(__file__).parents[1] / "data/runtime/architectures"


def config(name):
    return json.loads((DATA / f"{name}.json").read_text())


MODELS = {
    "7b": config("qwen2.5-7b"),
    "32b": config("qwen2.5-7b")
    | {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
    "27b": config("qwen3.8-27b"),
    "35b": config("qwen3.5-35b-a3b"),
}


def q4_k_m(name, shape):
    """llama-quantize's mixture: Q6_K for the head, and for values and down in half the layers."""
    if len(shape) < 2 or "conv1d" in name:
        return "gguf-f32"
    layer = [int(part) for part in name.split(".") if part.isdigit()]
    better = name.endswith(("v_proj", "down_proj")) and layer[0] % 2 == 0
    return "gguf-q6_k" if name == "lm_head" or better else "gguf-q4_k"


def iq4_xs(name, shape):
    small = len(shape) < 2 or "conv1d" in name
    return "gguf-f32" if small else "gguf-q5_k" if name == "lm_head" else "gguf-iq4_xs"


FORMATS = {
    "fp16": lambda name, shape: "dense",
    "q4_k_m": q4_k_m,
    "iq4_xs": iq4_xs,
    "nvfp4": linear_in("nvfp4-pack-quantized"),
    "awq": linear_in("awq"),
    "int4": linear_in("pack-quantized-int4"),
    "fp8": linear_in("fp8-block"),
}


@cache
def checkpoint(model, form):
    a = from_config(MODELS[model])
    return made(a, shapes(a, gated=a.linear_value_heads > 0), FORMATS[form])


def worked_out(model, form, engine, card="v100-sxm2-32gb", **how):
    engine = engines()[engine]
    return speed(checkpoint(model, form), engine, compat().cards[card], **how)


def holds(found, figure):
    assert found.low <= figure <= found.high, f"{figure} is not in {found}"


# Model, form, engine and set-up; what was reported: tokens/s of one request, of each and of all,
# and of prompts. The rows of catalog/engines say where.
REPORTED = {
    "vllm fp16": (("7b", "fp16", "vllm"), {"context": 512}, {"decode": 38, "prefill": 1900}),
    "vllm fp16 tp2": (
        ("7b", "fp16", "vllm"),
        {"context": 512, "tensor_parallel": 2},
        {"decode": 38, "prefill": 1900},
    ),
    "llama.cpp q4_k_m": (
        ("7b", "q4_k_m", "llamacpp"),
        {"context": 512, "tensor_parallel": 2},
        {"decode": 62, "prefill": 720},
    ),
    "llama.cpp iq4_xs": (
        ("27b", "iq4_xs", "llamacpp"),
        {"context": 2048},
        {"decode": (33.7, 36.4), "prefill": (755, 1008)},
    ),
    "llama.cpp 27b on 2 x 16 GB": (
        ("27b", "q4_k_m", "llamacpp", "v100-sxm2-16gb"),
        {"context": 2048, "tensor_parallel": 2},
        {"decode": 35.7},
    ),
    "27b nvfp4 tp2": (
        ("27b", "nvfp4", "1cat-vllm", "v100-sxm2-16gb"),
        {"context": 1024, "tensor_parallel": 2},
        {"decode": (34.0, 1000 / 19.99, 57.3)},
    ),
    "27b nvfp4 tp4 at 16k": (
        ("27b", "nvfp4", "1cat-vllm"),
        {"context": 16384, "tensor_parallel": 4, "kv_cache": "fp8_e5m2"},
        {"decode": 1000 / 14.466},
    ),
    "27b nvfp4 tp4 at 64k": (
        ("27b", "nvfp4", "1cat-vllm"),
        {"context": 65536, "tensor_parallel": 4, "kv_cache": "fp8_e5m2"},
        {"decode": 1000 / 18.022},
    ),
    "27b nvfp4 tp4 prompts": (
        ("27b", "nvfp4", "1cat-vllm"),
        {"context": 32768, "tensor_parallel": 4},
        {"prefill": 4039},
    ),
    "27b awq tp4": (
        ("27b", "awq", "1cat-vllm"),
        {"context": 512, "tensor_parallel": 4},
        {"decode": 86.31, "prefill": 512 / 0.167},
    ),
    "27b awq tp4 at 256k": (
        ("27b", "awq", "1cat-vllm"),
        {"context": 261888, "tensor_parallel": 4, "kv_cache": "fp8_e5m2"},
        {"decode": 32.858, "prefill": 261888 / 252.49},
    ),
    "27b fp8 tp4 at 16k": (
        ("27b", "fp8", "1cat-vllm"),
        {"context": 16384, "tensor_parallel": 4, "kv_cache": "fp8_e5m2"},
        {"decode": 1000 / 16.018},
    ),
    "27b awq eager": (
        ("27b", "awq", "1cat-vllm"),
        {"context": 2048, "eager": True},
        {"decode": 20},
    ),
    "27b int4 tp2 without NVLink": (
        ("27b", "int4", "1cat-vllm"),
        {"context": 4096, "tensor_parallel": 2, "concurrency": 4, "linked": False},
        {"decode": 50.5, "decode_all": 157},
    ),
    "35b awq tp4 at 16k": (
        ("35b", "awq", "1cat-vllm"),
        {"context": 16384, "tensor_parallel": 4, "kv_cache": "fp8_e5m2"},
        {"decode": 1000 / 9.290},
    ),
    "35b nvfp4 tp2, 16 at once": (
        ("35b", "nvfp4", "1cat-vllm", "v100-sxm2-16gb"),
        {"context": 512, "tensor_parallel": 2, "concurrency": 16, "eager": True},
        {"decode_all": 760, "decode_each": 1000 / 58},
    ),
    "35b nvfp4, 16 at once": (
        ("35b", "nvfp4", "1cat-vllm", "v100-sxm2-16gb"),
        {"context": 512, "concurrency": 16, "eager": True},
        {"decode_all": 380},
    ),
    "35b nvfp4 tp2 at 128k without NVLink": (
        ("35b", "nvfp4", "1cat-vllm", "v100-sxm2-16gb"),
        {
            "context": 131072,
            "tensor_parallel": 2,
            "concurrency": 2,
            "linked": False,
            "kv_cache": "fp8_e5m2",
        },
        {"decode_each": (30.5, 51.4), "prefill": (1460, 1484)},
    ),
    "lmdeploy 27b awq tp2": (
        ("27b", "awq", "lmdeploy"),
        {"context": 1024, "tensor_parallel": 2},
        {"decode": 37},
    ),
    "lmdeploy 32b int4 tp4": (
        ("32b", "int4", "lmdeploy", "v100-sxm2-16gb"),
        {"context": 1024, "tensor_parallel": 4, "kv_cache": "8"},
        {"decode": 80},
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_figure_is_in_its_range(name):
    what, how, figures = REPORTED[name]
    found = worked_out(*what, **how)
    for key, figure in figures.items():
        for one in figure if isinstance(figure, tuple) else (figure,):
            holds(getattr(found, key), one)
    for key in ("decode", "decode_each", "decode_all", "prefill"):
        ends = getattr(found, key)
        assert 0 < ends.low < ends.high <= 4 * ends.low, f"{key} {ends}"
    assert found.decode.high < found.limit


def test_the_limits_are_those_that_the_report_reckons_with():
    # 900 GB/s over 15 GB of FP16 and 4.4 GB of Q4_K_M; the embedding's rows are not all read.
    assert worked_out("7b", "fp16", "vllm", context=512).limit == pytest.approx(60, rel=0.06)
    assert worked_out("7b", "q4_k_m", "llamacpp", context=512).limit == pytest.approx(204, rel=0.03)


@pytest.mark.parametrize(
    ("form", "engine", "gpus", "figure"),
    [("fp16", "vllm", 1, 115), ("fp16", "vllm", 2, 115), ("q4_k_m", "llamacpp", 2, 140)],
)
def test_four_requests_at_once_with_their_prompts(form, engine, gpus, figure):
    found = worked_out("7b", form, engine, context=512, concurrency=4, tensor_parallel=gpus)
    holds(found.answers(512, 128, 4), figure)


def test_a_figure_beyond_the_limit_was_speculative_decoding():
    # 58 tokens/s of Qwen3.8-27B on four cards that have some layers each; on two of them its own
    # head brought 35.7 to 59.1.
    found = worked_out("27b", "q4_k_m", "llamacpp", context=2048, tensor_parallel=4)
    assert found.limit < 58
    holds(found.decode, 58 * 35.7 / 59.1)


def test_a_batch_shares_weights_and_not_the_past():
    def at(concurrency, context):
        how = {"context": context, "concurrency": concurrency, "tensor_parallel": 2}
        return worked_out("27b", "awq", "1cat-vllm", **how)

    one, many = at(1, 512), at(16, 512)
    assert many.decode == one.decode
    assert many.decode_each.low < one.decode_each.low < many.decode_all.low / 3
    short = at(16, 512).decode_all.low / at(1, 512).decode_all.low
    long = at(16, 65536).decode_all.low / at(1, 65536).decode_all.low
    assert long < short / 2


def test_beyond_some_batch_arithmetic_is_the_bound():
    how = {"context": 512, "tensor_parallel": 2}
    assert worked_out("32b", "fp16", "vllm", **how).bound == "memory bandwidth"
    assert worked_out("32b", "fp16", "vllm", concurrency=64, **how).bound == "arithmetic"


def test_where_attention_goes_through_sequences_one_by_one_each_costs_kernels():
    found = worked_out("7b", "nvfp4", "embedded", context=512, concurrency=16)
    assert found.bound == "starting kernels"
    assert found.decode_all.high < 16 * found.decode.high / 2


def test_more_tokens_need_more_of_the_experts():
    one, many = (
        worked_out("35b", "nvfp4", "1cat-vllm", context=512, concurrency=n) for n in (1, 16)
    )
    assert "A step needs 3% of the experts." in one.explained
    assert "A step of 16 requests needs 40% of the experts." in many.explained


def test_experts_dealt_out_whole_may_fall_on_one_gpu():
    how = {"context": 512, "tensor_parallel": 4, "concurrency": 8}
    split = worked_out("35b", "nvfp4", "1cat-vllm", **how)
    dealt = worked_out("35b", "nvfp4", "1cat-vllm", expert_parallel=4, **how)
    assert dealt.decode_each.low < split.decode_each.low
    assert dealt.decode_each.high == split.decode_each.high


def test_links_cost_more_without_nvlink_and_nothing_on_one_card():
    linked, not_linked = (
        worked_out("27b", "awq", "1cat-vllm", context=8192, tensor_parallel=4, linked=one)
        for one in (True, False)
    )
    assert not_linked.decode.low < linked.decode.low
    assert not_linked.prefill.high < linked.prefill.high
    card = "v100-pcie-32gb"  # has no NVLinks, whatever is said of them
    how = {"context": 8192, "tensor_parallel": 2}
    asked = [worked_out("27b", "awq", "1cat-vllm", card, linked=x, **how) for x in (True, False)]
    assert asked[0] == asked[1]
    one = [worked_out("7b", "fp16", "vllm", context=512, linked=x) for x in (True, False)]
    assert one[0] == one[1]


def test_gpus_with_some_layers_each_do_not_make_one_request_faster():
    one, four = (
        worked_out("27b", "q4_k_m", "llamacpp", context=8192, tensor_parallel=n) for n in (1, 4)
    )
    assert four.decode.high < one.decode.high
    assert one.prefill.high < four.prefill.high < 4.5 * one.prefill.high


def test_a_format_that_nobody_measured_has_a_wider_range_and_says_so():
    engine = engines()["embedded"]
    card = compat().cards["v100-sxm2-16gb"]
    own, other = (
        speed(checkpoint("7b", form), engine, card, context=512) for form in ("nvfp4", "int4")
    )
    assert "not yet on a V100" in " ".join(own.explained)
    assert "measured with another format" in " ".join(other.explained)
    assert other.decode.high / other.decode.low > own.decode.high / own.decode.low


def test_every_share_has_a_source():
    found = worked_out("35b", "nvfp4", "1cat-vllm", context=512)
    assert any("RELEASE.md" in source for source in found.sources)
    assert all(found.sources)


def test_a_sparse_checkpoint_on_disk(tmp_path):
    a = from_config(MODELS["7b"])
    form = FORMATS["fp16"]
    directory = write(tmp_path / "7b", stored(shapes(a), form), MODELS["7b"], shards=4)
    card = compat().cards["v100-sxm2-32gb"]
    found = speed(inspect(directory), engines()["vllm"], card, context=512)
    assert found == worked_out("7b", "fp16", "vllm", context=512)


def test_what_is_not_told_is_missing():
    told = checkpoint("7b", "fp16")
    card, engine = compat().cards["v100-sxm2-32gb"], engines()["vllm"]
    silent = replace(told, architecture=Architecture())
    with pytest.raises(Missing, match="layers"):
        speed(silent, engine, card, context=512)
    bare = replace(told, modules={})
    with pytest.raises(Missing, match="/models/x"):
        speed(bare, engine, card, context=512)
    with pytest.raises(Missing, match="fp4"):
        speed(told, engine, card, context=512, kv_cache="fp4")


def test_ranges_are_short_in_words():
    assert str(Range(3.94, 38.2)) == "3.9 to 38"
