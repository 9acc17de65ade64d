"""What a tensor-parallel size must divide, on models of real shapes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from models import checkpoint, linear_in, shapes

from volta_doctor.catalog.engines import engines
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Status
from volta_doctor.preflight.judge import examine
from volta_doctor.preflight.subject import Subject
from volta_runtime.checkpoint.architecture import from_config
from volta_runtime.checkpoint.scales import read_scales

DATA = Path(__file__).parents[2] / "data" / "runtime" / "architectures"


def model(name, row="nvfp4-pack-quantized", **fields):
    a = replace(from_config(json.loads((DATA / f"{name}.json").read_text())), **fields)
    return checkpoint(a, shapes(a, gated="qwen3." in name), linear_in(row))


def judge(check_id, of, tp=None, engine=None, **flags):
    subject = Subject(
        checkpoint=of,
        scales=read_scales(of),
        engine=engine and engines()[engine],
        flags=Flags(tensor_parallel_size=tp, **flags),
    )
    return examine(subject, model_checks()[check_id])


@pytest.mark.parametrize(
    ("name", "tp", "status", "says"),
    [
        ("qwen2.5-7b", 4, Status.OK, "All heads divide (num_attention_heads 28"),
        ("qwen2.5-7b", 8, Status.FAIL, "num_attention_heads 28 is no multiple of"),
        ("qwen2.5-7b", 14, Status.FAIL, "num_key_value_heads 4 neither divides"),
        ("llama-3-70b", 16, Status.INFO, "8 KV heads on 16 ranks"),
        ("qwen3.8-27b", 16, Status.FAIL, "num_attention_heads 24 is no multiple of"),
        ("qwen3.8-27b", 3, Status.FAIL, "linear_num_key_heads 16 is no multiple of"),
        ("deepseek-v3", 16, Status.INFO, "every rank holds the whole latent KV cache"),
        ("qwen2.5-7b", None, Status.OK, "Of 1 to 16 these sizes would work: 1, 2, 4."),
    ],
)
def test_heads(name, tp, status, says):
    found = judge("tp-divides-heads", model(name), tp)
    assert {finding.status for finding in found} == {status}
    assert any(says in finding.message for finding in found)


def test_a_model_that_tells_no_heads_is_unknown():
    of = replace(model("qwen2.5-7b"), architecture=from_config({}))
    assert judge("tp-divides-heads", of, 2)[0].status is Status.UNKNOWN


def test_half_a_group_is_a_fault_and_names_the_layer():
    of = model("qwen2.5-7b", "pack-quantized-int4")  # groups of 128 unless tensors show another
    down = "model.layers.0.mlp.down_proj"
    modules = {
        name: replace(module, group=(1, 128)) if name.endswith("down_proj") else module
        for name, module in of.modules.items()
    }
    found = judge("tp-divides-groups", replace(of, modules=modules), 8)
    failed = next(finding for finding in found if finding.subject == down)
    assert failed.status is Status.FAIL
    assert "18944 / tensor-parallel size 8 = 2368 is no multiple of group size 128" in (
        failed.message
    )
    assert "148 groups do not divide by 8" in failed.message
    assert judge("tp-divides-groups", replace(of, modules=modules), 4)[0].status is Status.OK


def test_blocks_of_fp8_must_stay_whole_in_outputs_too():
    of = model("qwen3-30b-a3b", "fp8-block")
    modules = {
        name: replace(module, group=(128, 128)) if module.format.name == "fp8-block" else module
        for name, module in of.modules.items()
    }
    blocks = replace(of, modules=modules)
    found = judge("tp-divides-groups", blocks, 4)  # 768 / 4 = 192 = 1.5 blocks
    assert {finding.status for finding in found} == {Status.FAIL}
    assert any("outputs" in finding.message for finding in found)
    dealt = judge("tp-divides-groups", blocks, 4, enable_expert_parallel=True)
    assert {finding.status for finding in dealt} == {Status.OK}


def test_a_dense_model_has_no_groups():
    assert judge("tp-divides-groups", model("llama-3-70b", "dense"), 3)[0].status is Status.SKIP


def test_sizes_that_do_not_divide():
    found = judge("tp-split", model("qwen2.5-7b", "dense"), 3)
    assert {finding.status for finding in found} == {Status.FAIL}
    assert any("18944 outputs of model.layers.0.mlp" in finding.message for finding in found)
    assert judge("tp-split", model("qwen2.5-7b", "dense"), 2)[0].status is Status.OK
    layers = judge("tp-split", model("qwen2.5-7b", "dense"), 3, engine="llamacpp")
    assert "whole layers" in layers[0].message


def test_experts():
    mixture = model("qwen3-30b-a3b")
    assert judge("tp-divides-experts", mixture, 8)[0].status is Status.OK
    inner = judge("tp-divides-experts", mixture, 5)
    assert {finding.status for finding in inner} == {Status.FAIL}
    uneven = judge("tp-divides-experts", mixture, 6, enable_expert_parallel=True)
    assert (uneven[0].status, uneven[0].message) == (
        Status.WARN,
        "128 experts on 6 ranks: 2 ranks hold 22, the others 21.",
    )
    few = model("mixtral-8x7b")
    assert judge("tp-divides-experts", few, 16, enable_expert_parallel=True)[0].status is (
        Status.FAIL
    )
    assert judge("tp-divides-experts", model("qwen2.5-7b"), 2)[0].status is Status.SKIP


@pytest.mark.parametrize(("tp", "width", "padded"), [(2, 8240, 8256), (4, 4120, 4128)])
def test_the_fused_inputs_of_a_gated_delta_net_fall_off_the_tile(tp, width, padded):
    """1Cat-vLLM #445, #517: corrupt results of 27B models."""
    (found,) = judge("tp-tile", model("qwen3.8-27b"), tp)
    assert found.status is Status.INFO
    assert f"A rank has {width} outputs" in found.message
    assert f"padded to {padded}" in found.message
    assert "in_proj_qkv+in_proj_z+in_proj_b+in_proj_a" in found.message


def test_whole_tiles():
    assert judge("tp-tile", model("qwen3.8-27b"), 1)[0].status is Status.OK
    assert judge("tp-tile", model("llama-3-70b"), 8)[0].status is Status.OK
    assert judge("tp-tile", model("llama-3-70b", "dense"), 3)[0].status is Status.SKIP
