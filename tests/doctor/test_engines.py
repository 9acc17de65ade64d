"""The engines of the catalogue: sound rows, real commands, and a runtime that is as its row is."""

from fnmatch import fnmatchcase

import pytest
from msgspec.structs import replace

from volta_doctor.catalog.engines import engines
from volta_doctor.facts.serve.engines import Flags, read_flags, recognise
from volta_runtime.checkpoint.formats import BY_NAME

ALL = [*engines().values()]
FLAGS = Flags(
    model="/models/x",
    tensor_parallel_size=2,
    gpu_memory_utilization=0.9,
    max_model_len=8192,
    max_num_seqs=16,
    enforce_eager=True,
    port=8001,
)


def every(engine):
    return pytest.mark.parametrize("engine", engine, ids=lambda one: one.name)


@every(ALL)
def test_rows_name_formats_that_there_are_and_say_why_one_does_not_run(engine):
    for row in [*engine.formats, *(r for r in engine.speed if r.phase != "past")]:
        for glob in row.formats:
            assert any(fnmatchcase(name, glob) for name in BY_NAME), glob
    for row in [*engine.formats, *engine.kv_cache]:
        assert row.runs or row.says
        assert row.source
    assert engine.cache("auto").runs


@every(ALL)
def test_every_row_can_be_reached(engine):
    # A row behind one that fits all that it fits says nothing to anybody.
    for number, row in enumerate(engine.formats):
        for earlier in engine.formats[:number]:
            fields = ("methods", "groups", "rows", "symmetric", "act_order", "experts", "versions")
            if any(getattr(earlier, field) not in ([], None, "") for field in fields):
                continue
            hidden = [g for g in row.formats if any(fnmatchcase(g, e) for e in earlier.formats)]
            assert hidden != row.formats, (row.formats, earlier.formats)


@every(ALL)
def test_shares_and_latencies_are_ranges_of_every_phase(engine):
    assert {row.phase for row in engine.speed} == {"decode", "past", "prefill"}
    for row in engine.speed:
        assert 0 < row.low < row.high <= 1
        assert row.high <= 4 * row.low, row.measured
    assert any(row.graphs == engine.memory.graphs for row in engine.latency)
    assert all(0 < row.low_us < row.high_us for row in engine.latency)


@every(ALL)
def test_the_command_is_recognised_with_the_flags_that_it_was_made_of(engine):
    words = engine.words(FLAGS)
    found, rest = recognise(words)
    assert found.name == engine.program
    flags, wrong = read_flags(found, rest, {}, {})
    assert not wrong
    for field in FLAGS.__struct_fields__:
        asked = getattr(FLAGS, field)
        if field == "max_model_len" and engine.context == "all":
            asked *= FLAGS.max_num_seqs
        if asked is not None and (engine.takes(field) or field == "model"):
            assert getattr(flags, field) == asked, field


def test_words_of_each_engine():
    kv = {"1cat-vllm": "fp8_e5m2", "llamacpp": "q8_0", "lmdeploy": "8"}
    for name, cache in kv.items():
        words = " ".join(engines()[name].words(Flags(model="m", kv_cache_dtype=cache)))
        expected = {
            "1cat-vllm": "vllm serve m --kv-cache-dtype fp8_e5m2 --dtype half"
            " --attention-backend FLASH_ATTN_V100",
            "llamacpp": "llama-server --model m --cache-type-k q8_0 --cache-type-v q8_0"
            " --n-gpu-layers 999 --split-mode layer --flash-attn on",
            "lmdeploy": "lmdeploy serve api_server m --quant-policy 8 --backend turbomind"
            " --dtype float16",
        }
        assert words == expected[name]


def test_a_module_of_python_is_started_by_python():
    engine = replace(engines()["vllm"], program="sglang", always=[])
    words = engine.words(Flags(model="m", max_model_len=8192))
    assert " ".join(words) == (
        "python -m sglang.launch_server --model-path m --context-length 8192"
    )
    assert recognise(words)[0].name == "sglang"


def test_a_flag_outweighs_what_is_always_asked_for():
    words = engines()["1cat-vllm"].words(Flags(model="m", dtype="float16"))
    assert words.count("--dtype") == 1 and "half" not in words


def ends(name, *asked, **narrower):
    """What an engine ends with; empty where it runs, None where nothing is known."""
    row = engines()[name].supports(*asked, **narrower)
    return row and ("" if row.runs else row.sentence(narrower.get("group")))


def test_what_runs_and_what_each_engine_ends_with():
    current = "Current capability: 70."
    assert ends("vllm", "awq").endswith(f"Minimum capability: 75. {current}")
    assert ends("vllm", "fp8-block").endswith(f"Minimum capability: 80. {current}")
    assert ends("vllm", "pack-quantized-int4").endswith(f"Min capability: 80. {current}")
    assert ends("vllm", "gptq", act_order=True) == ""
    assert ends("vllm", "gptq", act_order=True, experts=True) is None
    assert "compatible scheme" in ends("vllm", "nvfp4-pack-quantized")
    assert ends("vllm", "nvfp4-pack-quantized", version="0.11.0").endswith(current)
    assert ends("lmdeploy", "nvfp4-pack-quantized") == (
        "compressed-tensors only supports pack-quantized format, but got nvfp4-pack-quantized"
    )
    assert ends("lmdeploy", "awq", group=(1, 128)) == ""
    assert ends("lmdeploy", "awq", group=(1, 32)).startswith("Unsupported group_size=32 for")
    assert ends("lmdeploy", "gptq", group=(1, 128), symmetric=False).startswith("unsupported quant")
    assert ends("lmdeploy", "gptq", group=(1, 128), act_order=True).startswith("unsupported quant")
    assert ends("lmdeploy", "gptq", group=(1, 128), symmetric=True, act_order=False) == ""
    assert ends("lmdeploy", "fp8-tensor", group=(0, 0)) is None
    for group in (32, 64, 128):
        assert ends("1cat-vllm", "awq", group=(1, group)) == ""
    assert ends("1cat-vllm", "awq", group=(1, 256)) is None
    assert ends("1cat-vllm", "gptq", group=(1, 64)).endswith("but got 64.")
    assert ends("1cat-vllm", "modelopt-nvfp4", group=(1, 16)) == ""
    assert "70" in ends("1cat-vllm", "modelopt-nvfp4", group=(1, 16), version="1.2.2")
    assert ends("1cat-vllm", "float-quantized", group=(1, 0)) == ""
    assert ends("1cat-vllm", "float-quantized", group=(128, 128)) is None
    assert ends("1cat-vllm", "nvfp4-g32") == "Unknown quantization method: nvfp4."
    assert ends("llamacpp", "gguf-nvfp4") == ""
    assert "failed to load model" in ends("llamacpp", "dense")


def test_the_embedded_row_is_what_the_runtime_does():
    from volta_runtime import cli
    from volta_runtime.models import weights
    from volta_runtime.models.registry import ARCHITECTURES
    from volta_runtime.server import serve

    engine = engines()["embedded"]
    assert engine.architectures.names == [*ARCHITECTURES]
    served = {name for name in BY_NAME if ends("embedded", name) == ""}
    assert served == {*weights._SERVED}
    assert ends("embedded", "awq").endswith(f"it runs {', '.join(weights._SERVED)}")
    assert engine.memory.step_tokens == serve._PROMPT_TOKENS_PER_STEP["cuda"]
    options = {option.name: option for option in cli.serve.params}
    assert engine.memory.sequences == options["max_num_seqs"].default
    for flag, words in engine.command_line.flags.items():
        assert any(f"--{words[0]}" in option.opts for option in options.values()), flag
