"""Models of real shapes, planned for real cards."""

import os

import pytest

from volta_doctor.catalog.engines import engines
from volta_provision.errors import StackError
from volta_provision.plan.report import Memory

GIB = 2**30
NVFP4 = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "group_size": 16,
                "symmetric": True,
            },
        }
    },
    "ignore": ["lm_head", "re:.*mlp.gate$"],
}
PARTS = [
    field
    for field in Memory.__struct_fields__
    if field not in ("total", "budget", "free")
]  # fmt: skip


def test_7b_in_16_bits_is_split_over_two_cards(checkpoint, plan):
    made = plan(checkpoint("qwen2.5-7b"), count=2).plan
    assert (made.verdict, made.exit_code) == ("runs, but", 1)
    assert [caution.id for caution in made.cautions] == ["bf16"]
    choice = made.choice
    assert choice.tensor_parallel_size == 2
    for memory in choice.memory:
        assert sum(getattr(memory, part) for part in PARTS) + memory.free == memory.total
        assert memory.weights + memory.embeddings == pytest.approx(7.62e9, rel=0.02)
        assert memory.kv_cache == 16 * 8192 * 28 * 2 * 2 * 128 * 2
    assert choice.max_context >= 8192
    assert choice.max_concurrency >= 16
    outcomes = {other.engine: other.outcome for other in made.others}
    assert outcomes["llamacpp"] == outcomes["embedded"] == "ends"
    assert {*outcomes, choice.engine} == {*engines()}


def test_measured_speeds_lie_in_the_range(checkpoint, gguf_7b, plan):
    """Field report on V100s: 38 tokens/s in FP16, 62 in Q4_K_M."""
    for path, seen in ((checkpoint("qwen2.5-7b"), 38), (gguf_7b, 62)):
        speed = plan(path, gpu="v100-sxm2-32gb", concurrency=1).plan.choice.speed
        assert speed.decode.low <= seen <= speed.decode.high
        assert speed.decode.high < speed.limit


def test_what_nobody_asked_for_is_lowered_until_it_fits(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    lowered = plan(path, lower=("context", "concurrency")).plan
    assert lowered.asked.lowered
    assert lowered.asked.context * lowered.asked.concurrency < 8192 * 16
    assert "lowered" in [caution.id for caution in lowered.cautions]
    assert plan(path).plan.verdict == "does not run"


def test_what_would_fit_does(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    made = plan(path, concurrency=40).plan
    assert made.verdict == "does not run"
    assert "lacks" in made.reason
    options = [dict(zip(words[::2], words[1::2], strict=True)) for fit in made.would_fit
               if (words := fit.split()) and fit.startswith("--gpu")]  # fmt: skip
    assert options
    for option in options:
        again = plan(path, option["--gpu"], int(option["--count"]), concurrency=40).plan
        assert again.verdict == "runs, but"
        assert again.choice.tensor_parallel_size == int(option["--count"])


def test_a_shorter_context_that_is_said_to_fit_does(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    made = plan(path, count=2, context=32768).plan
    longest = next(fit.split()[1] for fit in made.would_fit if fit.startswith("--context"))
    fewest = next(fit.split()[1] for fit in made.would_fit if fit.startswith("--concurrency"))
    assert plan(path, count=2, context=int(longest)).plan.exit_code == 1
    assert plan(path, count=2, context=int(longest) + 16).plan.exit_code == 2
    assert plan(path, count=2, context=32768, concurrency=int(fewest)).plan.exit_code == 1
    assert any("4 bits" in fit for fit in made.would_fit)


def test_35b_in_4_bits_runs_on_two_cards_of_16_gb(checkpoint, plan, zero_scales):
    path = checkpoint("qwen3.5-35b-a3b", "nvfp4-pack-quantized", NVFP4, gated=True)
    made = plan(path, count=2).plan
    assert made.choice.engine == "1cat-vllm"
    assert made.choice.tensor_parallel_size == 2
    weights = made.choice.memory[0].weights + made.choice.memory[0].embeddings
    assert 9 * GIB < weights < 11 * GIB  # 35e9 x 4.5 bits / 2, and what stays in 16 bits
    assert any("nvfp4-pack-quantized" in other.says for other in made.others)
    alone = plan(path).plan
    assert alone.verdict == "does not run"
    assert "--gpu v100-sxm2-16gb --count 2" in alone.would_fit
    assert "--gpu v100-sxm2-32gb --count 1" in alone.would_fit


def test_a_gguf_file_is_for_llama_cpp(gguf_7b, plan):
    choice = plan(gguf_7b, count=2).plan.choice
    assert choice.engine == "llamacpp"
    assert choice.tensor_parallel_size == 1  # a second card makes nothing faster
    assert choice.env["CUDA_VISIBLE_DEVICES"] == "0"  # and it would take all it sees
    assert ["--ctx-size", str(16 * 8192)] == choice.command[3:5]


def test_what_is_too_big_for_anything_says_so(checkpoint, plan):
    made = plan(checkpoint("deepseek-v3"), gpu="v100-sxm2-32gb", count=16).plan
    assert made.exit_code == 2
    assert all(other.outcome != "runs" for other in made.others)
    assert made.would_fit
    assert not any(fit.startswith(("--context", "--gpu")) for fit in made.would_fit)


def test_what_no_engine_runs_ends_with_their_sentences(checkpoint, plan, zero_scales):
    house_form = {"quant_method": "nvfp4", "group_size": 32, "scale_dtype": "fp32"}
    made = plan(checkpoint("llama-3-70b", "nvfp4-g32", house_form)).plan
    assert made.exit_code == 2
    assert made.choice is None
    assert all(other.outcome == "ends" and other.says for other in made.others)
    assert "another format" in made.would_fit[0]


def test_a_damaged_shard_is_named_and_nothing_planned(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    os.truncate(path / "model-00002-of-00002.safetensors", 1 << 20)
    outcome = plan(path, count=2)
    assert outcome.plan.exit_code == 2
    assert f"volta-doctor model {path}" in outcome.plan.reason
    assert "model-00002-of-00002.safetensors" in outcome.plan.cautions[0].message
    assert outcome.stack is None


def test_an_index_alone_is_planned_by_names_and_size(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    whole = plan(path, count=2).plan
    for shard in path.glob("*.safetensors"):
        shard.unlink()
    made = plan(path, count=2).plan
    assert made.exit_code == 1
    assert "not-seen" in [caution.id for caution in made.cautions]
    weights = [p.choice.memory[0].weights + p.choice.memory[0].embeddings for p in (whole, made)]
    assert weights[1] == pytest.approx(weights[0], rel=0.02)
    assert made.choice.speed is None
    assert made.choice.no_speed


def test_a_context_beyond_the_models_own_is_wrong_usage(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    with pytest.raises(StackError, match="--context 65536: the model is made for 32768"):
        plan(path, count=2, context=65536)
    with pytest.raises(StackError, match="--tensor-parallel-size 4"):
        plan(path, count=2, tensor_parallel_size=4)


def test_an_engine_that_is_asked_for_is_the_only_one(checkpoint, plan):
    made = plan(checkpoint("qwen2.5-7b"), count=2, engine="vllm").plan
    assert made.choice.engine == "vllm"
    assert made.others == []


def test_more_of_a_gpu_is_taken_where_that_makes_it_fit(checkpoint, plan):
    path = checkpoint("qwen2.5-7b")
    usual = plan(path, count=2, engine="vllm").plan.choice
    assert "--gpu-memory-utilization" not in usual.command
    full = plan(path, count=2, engine="vllm", concurrency=usual.max_concurrency + 1).plan.choice
    assert "--gpu-memory-utilization 0.95" in " ".join(full.command)


def test_a_type_of_cache_that_an_engine_lacks_is_named(checkpoint, plan):
    made = plan(checkpoint("qwen2.5-7b"), count=2, engine="lmdeploy", kv_cache_dtype="fp8_e5m2")
    assert made.plan.exit_code == 2
    assert "fp8_e5m2" in made.plan.reason


def test_more_gpus_may_be_those_of_another_engine(checkpoint, plan):
    """The runtime of one GPU comes nearest, and it cannot use a second one."""
    path = checkpoint("llama-3-70b")
    made = plan(path, concurrency=1).plan
    assert made.choice.engine == "embedded"
    [fit] = [fit for fit in made.would_fit if fit.startswith("--gpu v100-sxm2-16gb")]
    words = fit.split()
    again = plan(path, count=int(words[3]), engine=words[5], concurrency=1).plan
    assert again.verdict == "runs, but"


@pytest.mark.parametrize(("gpu", "asked"), [("v100-sxm2-16gb", False), ("v100-pcie-16gb", True)])
def test_without_nvlink_vllm_starts_without_its_own_all_reduce(checkpoint, plan, gpu, asked):
    outcome = plan(checkpoint("qwen2.5-7b"), gpu=gpu, count=2, engine="1cat-vllm")
    assert ("--disable-custom-all-reduce" in outcome.plan.choice.command) is asked
    assert (outcome.stack.serve.disable_custom_all_reduce is True) is asked
    assert "torch.compile" in outcome.plan.choice.note
