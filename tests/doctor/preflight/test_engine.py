"""What an engine makes of a checkpoint: its formats, its dtype, its attention and its KV cache."""

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
from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.scales import Scales
from volta_runtime.checkpoint.scheme import Scheme
from volta_runtime.checkpoint.tensors import TensorInfo

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "torch_dtype": "float16",
}
QWEN = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def model(form, config=LLAMA, group=None, **scheme):
    """A checkpoint whose layers are in this format, as a config promises it."""
    a = from_config(config)
    rest = "gguf-f32" if form.startswith("gguf") else "dense"
    made = checkpoint(a, shapes(a), linear_in(form, rest))
    promised = Scheme(form, Path("config.json"), "quantization_config", **scheme)
    modules = {
        name: replace(m, group=group or m.group, scheme=promised) if m.quantised else m
        for name, m in made.modules.items()
    }
    return replace(made, modules=modules)


def judge(check, made, engine="", **flags):
    chosen = engines()[engine] if engine else None
    subject = Subject(made, Scales({}, 0, 0, {}), chosen, Flags(**flags))
    return examine(subject, model_checks()[check])


def one(check, made, engine="", **flags):
    found = judge(check, made, engine, **flags)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("engine", "made", "says"),
    [
        ("vllm", model("awq", QWEN, (1, 128)), "Minimum capability: 75. Current capability: 70"),
        ("vllm", model("fp8-block", QWEN), "The quantization method fp8 is not supported"),
        ("vllm", model("nvfp4-pack-quantized", QWEN), "No compressed-tensors compatible scheme"),
        ("lmdeploy", model("nvfp4-pack-quantized", QWEN), "but got nvfp4-pack-quantized"),
        (
            "lmdeploy",
            model("awq", QWEN, (1, 64)),
            'Unsupported group_size=64 for model_format="awq"',
        ),
        ("lmdeploy", model("gptq", QWEN, (1, 128), act_order=True), "unsupported quant config"),
        ("lmdeploy", model("gptq", QWEN, (1, 128), symmetric=False), "unsupported quant config"),
        ("1cat-vllm", model("gptq", QWEN, (1, 64), act_order=False), "group_size 128, but got 64"),
        ("1cat-vllm", model("nvfp4-g32", QWEN), "Unknown quantization method: nvfp4"),
        ("llamacpp", model("awq", QWEN), "failed to load model"),
        ("embedded", model("awq"), "which volta-serve does not run; it runs dense, nvfp4"),
        ("embedded", model("nvfp4-pack-quantized", QWEN), "architectures is ['Qwen2ForCausalLM']"),
    ],
)
def test_the_named_engine_ends_with_its_sentence(engine, made, says):
    finding = judge("quant-volta", made, engine)[0]
    assert finding.status is Status.FAIL
    assert finding.message.startswith(engines()[engine].title)
    assert says in finding.message
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    ("engine", "made"),
    [
        ("vllm", model("gptq", QWEN, (1, 128), act_order=True)),
        ("vllm", model("dense", MIXTRAL)),
        ("lmdeploy", model("awq", QWEN, (1, 128))),
        ("lmdeploy", model("gptq", QWEN, (1, 128), symmetric=True, act_order=False)),
        ("lmdeploy", model("mxfp4-blocks", QWEN, (1, 32))),
        ("1cat-vllm", model("awq", MIXTRAL, (1, 32))),
        ("1cat-vllm", model("nvfp4-pack-quantized", MIXTRAL, (1, 16))),
        ("1cat-vllm", model("float-quantized", QWEN, (1, 0))),
        ("llamacpp", model("gguf-q4_k", MIXTRAL)),
        ("embedded", model("nvfp4-pack-quantized", LLAMA, (1, 16))),
        ("embedded", model("dense")),
    ],
)
def test_the_named_engine_runs_it(engine, made):
    finding = one("quant-volta", made, engine)
    assert finding.status in (Status.OK, Status.INFO), finding.message


def test_a_variable_that_it_needs_is_told():
    made = model("pack-quantized-int4", QWEN, (1, 32))
    finding = one("quant-volta", made, "1cat-vllm")
    assert finding.status is Status.INFO
    assert "VLLM_SM70_COMPRESSED_TENSORS_TURBOMIND=1" in finding.message


def test_each_format_of_a_mixed_checkpoint_is_judged_and_the_module_named():
    a = from_config(QWEN)

    def mixed(name, shape):
        if len(shape) < 2 or ".layers." not in name:
            return "dense"
        return "fp8-channel" if "self_attn" in name else "nvfp4-pack-quantized"

    found = judge("quant-volta", checkpoint(a, shapes(a), mixed), "vllm")
    assert {finding.status for finding in found} == {Status.FAIL}
    first = {finding.subject: finding.message for finding in found}
    assert "8 modules in fp8-channel" in first["model.layers.0.self_attn.q_proj"]
    assert "6 modules in nvfp4-pack-quantized" in first["model.layers.0.mlp.gate_proj"]


def test_what_the_catalogue_does_not_know_is_unknown():
    finding = one("quant-volta", model("awq", QWEN, (1, 256)), "1cat-vllm")
    assert finding.status is Status.UNKNOWN
    assert "a scale for 256 weights is not known" in finding.message


def test_without_an_engine_it_says_who_runs_it_and_what_the_others_end_with():
    finding = one("quant-volta", model("nvfp4-pack-quantized", LLAMA, (1, 16)))
    assert finding.status is Status.OK
    assert "1Cat-vLLM, Volta's embedded runtime run it" in finding.message
    said = {evidence.source: evidence.text for evidence in finding.evidence}
    assert set(said) == {"llama.cpp", "LMDeploy (TurboMind)", "vLLM"}
    assert "but got nvfp4-pack-quantized" in said["LMDeploy (TurboMind)"]


def test_it_fails_without_an_engine_only_where_none_can():
    finding = one("quant-volta", model("nvfp4-g32", QWEN))
    assert finding.status is Status.FAIL
    assert len(finding.evidence) == len(engines())
    finding = one("quant-volta", model("fp8-channel", QWEN, (1, 0)))
    assert finding.status is Status.OK
    finding = one("quant-volta", model("gguf-tq2_0", QWEN))
    assert finding.status is Status.UNKNOWN


def stored_in(dtype, **fields):
    a = from_config(LLAMA | fields)
    made = checkpoint(a, shapes(a))
    tensor = TensorInfo("model.norm.weight", dtype, (256,), Path("m.safetensors"), (0, 512))
    return replace(made, contents=Contents(made.path, "safetensors", tensors={tensor.name: tensor}))


def test_bfloat16():
    assert one("bf16", stored_in("F16"), dtype="bfloat16").status is Status.FAIL
    assert one("bf16", stored_in("F16")).status is Status.OK
    assert one("bf16", stored_in("F16"), dtype="half").status is Status.OK
    finding = one("bf16", stored_in("BF16"), dtype="half")
    assert finding.status is Status.WARN
    assert finding.evidence[0].text == "model.norm.weight: BF16"
    assert one("bf16", stored_in("F8_E4M3", torch_dtype="bfloat16")).status is Status.WARN


def test_attention_backends():
    made = model("dense")
    for backend in ("FLASH_ATTN", "flashinfer"):
        finding = one("attn-kv", made, attention_backend=backend)
        assert finding.status is Status.FAIL
        assert "does not run on Volta" in finding.message
    for backend in ("TRITON_ATTN", "FLASH_ATTN_V100", "XFORMERS", None):
        assert one("attn-kv", made, attention_backend=backend).status is Status.OK


@pytest.mark.parametrize(
    ("cache", "engine", "attention", "e4m3"),
    [
        (None, "vllm", Status.OK, Status.OK),
        ("auto", "1cat-vllm", Status.OK, Status.OK),
        ("fp8", "vllm", Status.FAIL, Status.FAIL),
        ("fp8_e4m3", "vllm", Status.FAIL, Status.FAIL),
        ("fp8_e5m2", "vllm", Status.INFO, Status.INFO),
        ("fp8_e4m3", "1cat-vllm", Status.INFO, Status.WARN),
        ("fp8_e5m2", "1cat-vllm", Status.INFO, Status.INFO),
        ("q8_0", "llamacpp", Status.INFO, Status.OK),
        ("8", "lmdeploy", Status.INFO, Status.OK),
        ("fp8", "lmdeploy", Status.UNKNOWN, Status.UNKNOWN),
        ("fp8", "", Status.SKIP, Status.WARN),
        ("fp8_e5m2", "", Status.SKIP, Status.INFO),
    ],
)
def test_types_of_kv_cache(cache, engine, attention, e4m3):
    made = model("dense")
    assert one("attn-kv", made, engine, kv_cache_dtype=cache).status is attention
    finding = one("kv-cache-dtype-e4m3", made, engine, kv_cache_dtype=cache)
    assert finding.status is e4m3
    if finding.status is Status.FAIL:
        assert "type fp8e4nv not supported in this architecture" in finding.message


@pytest.mark.parametrize("engine", ["vllm", "lmdeploy", "embedded"])
def test_an_architecture_that_an_engine_does_not_know_is_what_it_ends_with(engine):
    made = model("dense", LLAMA | {"architectures": ["Gemma9ForCausalLM"]})
    finding = judge("quant-volta", made, engine)[0]
    assert finding.status is Status.FAIL
    said = engines()[engine].architectures.sentence(["Gemma9ForCausalLM"])
    assert "Gemma9ForCausalLM" in said or engine == "lmdeploy"
    assert "{" not in said
    assert said.rstrip(".") in finding.message


def test_what_most_modules_meet_is_told_first():
    finding = judge("quant-volta", model("awq", MIXTRAL), "llamacpp")[0]
    linear = 2 * (4 + 4 * 3)  # of two layers: attention, and three matrices of each of four experts
    assert f"{linear} modules in awq" in finding.message
    assert "it reads GGUF files" in finding.message
