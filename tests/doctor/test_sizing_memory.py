"""Will it fit: sums against published figures, the first field report's, and the solved limits."""

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from models import checkpoint, linear_in, memory_plan, shapes

from volta_doctor.catalog.engines import engines
from volta_doctor.facts.model import Missing
from volta_doctor.preflight.subject import Cards
from volta_doctor.sizing.activations import activation_bytes
from volta_doctor.sizing.cache import caches, state_bytes
from volta_doctor.sizing.memory import places_of
from volta_doctor.sizing.split import Split, role_of
from volta_doctor.sizing.weights import by_gpu, weights_of
from volta_runtime.checkpoint.architecture import from_config, from_gguf

DATA = Path(__file__).parents[1] / "data" / "runtime" / "architectures"
GIB, KIB = 2**30, 2**10
VLLM, CAT, LLAMA_CPP = (engines()[name] for name in ("vllm", "1cat-vllm", "llamacpp"))
MORE = {"qwen2.5-7b": {"bias": True}, "qwen3.8-27b": {"gated": True}}


def architecture(name):
    return from_config(json.loads((DATA / f"{name}.json").read_text()))


def model(name, row="dense"):
    a = architecture(name)
    gated = {"gated": True} if "qwen3.5" in name else {}
    return checkpoint(a, shapes(a, **MORE.get(name, gated)), linear_in(row))


def cards(count, gib=16, used=0):
    return Cards(f"v100-sxm2-{gib}gb", (gib * GIB,) * count, (used,) * count, "--gpu")


def per_token(name, ranks=1, value_bytes=2.0):
    a = architecture(name)
    kept = caches(a, Split(ranks), (), value_bytes=value_bytes, block=16, step=0)
    return kept[0].per_token


@pytest.mark.parametrize(
    ("name", "ranks", "size"),
    [
        ("llama-3-70b", 1, 320 * KIB),
        ("llama-3-70b", 8, 40 * KIB),
        ("llama-3-70b", 16, 40 * KIB),  # 8 KV heads: the last halving copies them
        ("qwen2.5-7b", 1, 56 * KIB),
        ("qwen2.5-7b", 2, 28 * KIB),
        ("mixtral-8x7b", 1, 128 * KIB),
        ("deepseek-v3", 1, 61 * 576 * 2),  # a latent of 512 and 64 for positions, in each layer
        ("deepseek-v3", 8, 61 * 576 * 2),
        ("gpt-oss-20b", 1, 48 * KIB),
        ("qwen3-30b-a3b", 1, 96 * KIB),
        ("qwen3.8-27b", 1, 64 * KIB),  # 16 of its 64 layers
        ("gemma-3-27b", 1, 62 * 16 * 2 * 128 * 2),
    ],
)
def test_the_kv_cache_of_a_token(name, ranks, size):
    assert per_token(name, ranks) == size


def test_fp8_halves_it():
    assert per_token("llama-3-70b", value_bytes=1) == 160 * KIB


def test_a_full_window_stops_growing():
    a = architecture("gpt-oss-20b")
    kept = caches(a, Split(), (), value_bytes=2, block=16, step=0)[0]
    of_full = 12 * 8 * 64 * 2 * 2
    assert kept.sequence(131072) == of_full * (131072 + 128)
    assert kept.sequence(64) == of_full * 2 * 64


def test_pages_are_whole():
    kept = caches(architecture("qwen2.5-7b"), Split(), (), value_bytes=2, block=16, step=0)[0]
    assert kept.sequence(1) == kept.sequence(16) == 16 * 56 * KIB


def test_the_state_of_a_gated_delta_net():
    a = architecture("qwen3.8-27b")
    one = 48 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) * 3 * 2  # FP32 state, FP16 convolution
    assert state_bytes(a, 1) == one
    kept = caches(a, Split(2), (), value_bytes=2, block=16, step=0)
    assert kept[0].state == 48 * one // 2


def test_layers_that_fold_their_past():
    fields = {"num_hidden_layers": 3, "head_dim": 512, "qk_rope_head_dim": 64}
    a = from_config(fields | {"compress_ratios": [0, 4, 128], "sliding_window": 128})
    kept = caches(a, Split(), (), value_bytes=2, block=1, step=0)[0]
    assert kept.sequence(1280) == 1024 * (3 * 128 + 1280 // 4 + 1280 // 128)


def test_what_it_is_not_told_is_named():
    a = from_config({"num_hidden_layers": 2})
    with pytest.raises(Missing, match="KV heads"):
        caches(a, Split(), (), value_bytes=2, block=1, step=0)
    with pytest.raises(Missing, match="how many layers"):
        caches(from_config({}), Split(), (), value_bytes=2, block=1, step=0)


def sizes(name, split, row="dense"):
    """Bytes on the first GPU: of layers, and of embedding and head."""
    return by_gpu(weights_of(model(name, row)), split, ())[0]


def test_weights_on_one_gpu_are_all_of_them():
    assert sum(sizes("qwen2.5-7b", Split())) == 2 * 7_615_616_512
    assert sizes("qwen2.5-7b", Split())[1] == 2 * 2 * 152064 * 3584


def test_a_split_halves_matrices_and_copies_the_rest():
    whole, half = sizes("llama-3-70b", Split())[0], sizes("llama-3-70b", Split(2))[0]
    norms = 161 * 8192 * 2
    assert half == (whole - norms) // 2 + norms


def test_kv_projections_are_copied_beyond_the_kv_heads():
    two, four = sizes("qwen3.5-35b-a3b", Split(2)), sizes("qwen3.5-35b-a3b", Split(4))
    kv = 10 * 2 * (2 * 256 * 2048) // 2 * 2  # of ten layers k and v of one head each
    assert four[0] > two[0] / 2 + kv / 2


def test_latent_projections_are_copied():
    a = architecture("deepseek-v3")
    latent = 61 * (1536 + 576) * 7168 * 2
    whole, eighth = sizes("deepseek-v3", Split())[0], sizes("deepseek-v3", Split(8))[0]
    copied = latent + 58 * 256 * 7168 * 2  # and the routers
    assert eighth == pytest.approx((whole - copied) / 8 + copied, rel=1e-3)
    assert role_of("model.layers.61.mlp.experts.3.up_proj", a).mtp


def test_experts_are_dealt_out_whole_or_split():
    split, dealt = sizes("qwen3-30b-a3b", Split(4)), sizes("qwen3-30b-a3b", Split(4, 4))
    assert split == dealt
    alone = sizes("qwen3-30b-a3b", Split(1, 4))[0]  # all else whole on each
    assert alone > dealt[0]


def test_packed_weights_are_padded_to_tiles():
    a = from_config({"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 64})
    packed = checkpoint(
        a, {"model.layers.0.mlp.up_proj": (48, 64)}, lambda name, shape: "nvfp4-pack-quantized"
    )
    whole = 48 * 64 // 2 + 48 * 4 + 4  # codes, scales, the global scale
    assert by_gpu(weights_of(packed), Split(), ())[0][0] == math.ceil(whole * 64 / 48)
    assert by_gpu(weights_of(packed), Split(2), ())[0][0] == math.ceil(whole * 32 / 48)


def test_a_tied_head_is_there_once():
    a = replace(architecture("qwen2.5-7b"), tied=True)
    names = shapes(replace(a, tied=False))
    assert by_gpu(weights_of(checkpoint(a, names)), Split(), ())[0][1] == 2 * 152064 * 3584


def test_layers_are_dealt_out_by_memory_and_rows_looked_up_on_the_host():
    a = architecture("llama-3-70b")
    split = Split(2, by_layer=True)
    places = places_of(a, split, (32 * GIB, 16 * GIB))
    assert (places.count(0), places.count(1)) == (54, 26)
    found = by_gpu(weights_of(model("llama-3-70b")), split, places)
    assert found[0][0] > 2 * found[1][0]
    assert [ends for _, ends in found] == [0, 2 * 128256 * 8192]


def test_stages_of_a_pipeline_have_some_layers_each():
    split = Split(2, stages=2)
    places = places_of(architecture("llama-3-70b"), split, (1,) * 4)
    assert (places.count(0), places.count(1)) == (40, 40)
    found = by_gpu(weights_of(model("llama-3-70b")), split, places)
    table = 128256 * 8192 * 2 // 2
    assert [ends for _, ends in found] == [table] * 4  # embedding there, head here
    assert sum(layers for layers, _ in found) == pytest.approx(2 * 68.45e9, rel=1e-3)
    kept = caches(architecture("llama-3-70b"), split, places, value_bytes=2, block=16, step=0)
    assert [cache.per_token for cache in kept] == [80 * KIB] * 4


@pytest.mark.parametrize(("ranks", "seen"), [(1, 1.26), (2, 1.26)])
def test_activations_as_vllm_measured_them(ranks, seen):
    """Llama-3-8B, 8192 tokens at once and 256 sequences (vllm #10511)."""
    a = from_config(
        {
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "vocab_size": 128256,
        }
    )
    memory = msgspec.structs.replace(VLLM.memory, step_tokens=8192)
    found = activation_bytes(a, memory, Split(ranks), 256) / GIB
    assert found == pytest.approx(seen, rel=0.05)


def test_llama_cpp_makes_logits_of_a_whole_step():
    """Its compute buffer of Llama-3-8B at -ub 512 is 258.5 MiB, of which logits are 250.5."""
    a = from_config({"num_hidden_layers": 1, "vocab_size": 128256, "hidden_size": 4096})
    assert activation_bytes(a, LLAMA_CPP.memory, Split(), 1) == 250.5 * 2**20


def test_the_first_reports_sums_and_where_they_go_wrong():
    """35B in 4 bits on 2 x 16 GB at 0.88: 17.5 GB, 8.75 each, 14 usable, 5.25 left.

    At its 0.16 MB a token that is room for tens of thousands of tokens.
    """
    plan = memory_plan(
        model("qwen3.5-35b-a3b", "nvfp4-pack-quantized"),
        CAT,
        cards(2),
        tensor_parallel=2,
        context=8192,
        concurrency=1,
        utilization=0.88,
        eager=True,
    )
    naive = 34.7e9 / 2  # bytes, in 4 bits
    assert naive == pytest.approx(17.5e9, rel=0.02)
    assert plan.budget[0] / GIB == pytest.approx(14, rel=0.02)
    assert naive / 2 == pytest.approx(8.75e9, rel=0.02)
    left = plan.budget[0] / GIB - 8.75
    assert left == pytest.approx(5.25, rel=0.04)
    assert 30_000 < left * 1e9 / 0.16e6 < 35_000
    # The truth: scales, 16-bit embeddings, CUDA and activations leave less.
    held = plan.gpus[0]
    assert plan.fits
    assert (held.weights + held.embeddings) / 1e9 == pytest.approx(10.5, abs=0.2)
    assert plan.budget[0] - held.total < 4.2e9
    assert any(
        "34.7 billion parameters in 4 bits would be 17.3 GB; with scales (4.50 bits)" in note
        for note in plan.notes
    )
    # This hybrid keeps keys and values in 10 of its 40 layers: far more tokens than the sum says.
    assert plan.kv_bytes_per_token == 10 * KIB
    assert plan.max_context == 262_144


def test_0_16_mb_a_token_is_a_dense_models():
    """The report's figure: 40 layers of 8 KV heads of 128."""
    fields = {"num_hidden_layers": 40, "num_key_value_heads": 8, "head_dim": 128}
    kept = caches(from_config(fields), Split(), (), value_bytes=2, block=16, step=0)
    assert kept[0].per_token == 163_840


def planned(context=8192, concurrency=4, **more):
    more = {"utilization": 0.88, "tensor_parallel": 2} | more
    number = more.pop("cards", cards(max(more["tensor_parallel"], more.get("expert_parallel", 1))))
    checkpoint_of = more.pop("model", model("qwen2.5-7b"))
    engine = more.pop("engine", VLLM)
    return memory_plan(
        checkpoint_of, engine, number, context=context, concurrency=concurrency, **more
    )


def test_what_is_said_to_fit_fits_and_no_more():
    plan = planned()
    assert plan.fits
    assert planned(context=plan.max_context).fits
    assert plan.max_context == 32768 or not planned(context=plan.max_context + 1).fits
    assert planned(concurrency=plan.max_concurrency).fits
    assert not planned(concurrency=plan.max_concurrency + 1).fits
    tight = planned(concurrency=32)
    assert not tight.fits
    assert planned(context=tight.max_context, concurrency=32).fits
    assert not planned(context=tight.max_context + 1, concurrency=32).fits


def test_nothing_fits_where_the_weights_do_not():
    plan = planned(tensor_parallel=1)
    assert (plan.fits, plan.max_context, plan.max_concurrency) == (False, 0, 0)


def test_graphs_and_neighbours_and_utilization():
    base = planned()
    assert planned(eager=True).gpus[0].total == base.gpus[0].total - VLLM.memory.graph_bytes
    beside = planned(cards=cards(2, used=6 * GIB))
    assert beside.gpus[0].neighbours == 6 * GIB
    assert beside.max_concurrency < base.max_concurrency
    assert any("Others hold 6.4 GB of GPU 0" in note for note in beside.notes)
    assert planned(utilization=0.5).budget[0] == 16144 * 2**20 // 2


@pytest.mark.parametrize("size", range(1, 17))
def test_every_size_of_tensor_and_expert_parallel_is_planned(size):
    mixture = model("qwen3-30b-a3b", "nvfp4-pack-quantized")
    plan = planned(model=mixture, engine=CAT, tensor_parallel=size)
    dealt = planned(model=mixture, engine=CAT, tensor_parallel=size, expert_parallel=size)
    apart = planned(model=mixture, engine=CAT, tensor_parallel=1, expert_parallel=size)
    assert len(plan.gpus) == len(dealt.gpus) == len(apart.gpus) == size
    assert apart.gpus[0].kv_cache == pytest.approx(
        math.ceil(4 / size)
        * planned(model=mixture, tensor_parallel=1, concurrency=1).gpus[0].kv_cache
    )


def test_layers_on_several_gpus():
    plan = planned(
        model=model("llama-3-70b"),
        engine=LLAMA_CPP,
        cards=cards(6, 32),
        tensor_parallel=6,
        utilization=None,
    )
    assert plan.fits
    cached = sum(part.kv_cache for part in plan.gpus)
    assert cached == 4 * 8192 * 320 * KIB
    assert plan.gpus[0].embeddings == 0 < plan.gpus[5].embeddings


def test_too_few_cards_and_a_cache_that_is_unknown():
    with pytest.raises(Missing, match="4 GPUs are asked for, and 2 are known"):
        planned(tensor_parallel=4, cards=cards(2))
    with pytest.raises(Missing, match="no KV cache type int3"):
        planned(kv_cache="int3")


def test_an_index_alone_is_estimated():
    whole = model("qwen2.5-7b")
    contents = replace(whole.contents, kind="index", total_size=2 * 7_615_616_512)
    index = replace(whole, contents=contents, modules={})
    plan, known = planned(model=index), planned(model=whole)
    assert plan.gpus[0].total == pytest.approx(known.gpus[0].total, rel=0.01)
    assert any("Only the index is there" in note for note in plan.notes)
    with pytest.raises(Missing, match="does not tell the size"):
        planned(model=replace(index, contents=replace(contents, total_size=None)))


def test_a_gguf_model_by_its_own_names():
    a = from_gguf(
        {
            "general.architecture": "llama",
            "llama.block_count": 1,
            "llama.embedding_length": 256,
            "llama.attention.head_count": 8,
            "llama.attention.head_count_kv": 8,
        }
    )
    names = {
        "token_embd": (512, 256),
        "blk.0.attn_q": (256, 256),
        "blk.0.ffn_down": (256, 1024),
        "output": (512, 256),
    }
    gguf = checkpoint(a, names, lambda name, shape: "gguf-q8_0")
    whole = by_gpu(weights_of(gguf), Split(), ())[0]
    assert whole[0] == (256 * 256 + 256 * 1024) * 34 // 32
    halved = by_gpu(weights_of(gguf), Split(2), ())[0]
    assert halved == (whole[0] // 2, whole[1] // 2)
