"""What is put wrong into a sound checkpoint is named: tensor, file, expected, found."""

import json
import time
from pathlib import Path

import field_checkpoints as field
import pytest
from checkpoints import write

from volta_runtime.checkpoint import inspect

LAYERS = 16
ATTENTION, MLP = f"{field.TEXT}layers.3.self_attn", f"{field.TEXT}layers.5.mlp"
GDN = f"{field.TEXT}layers.4.linear_attn"


@pytest.fixture
def changed(tmp_path: Path):
    """Make a checkpoint, change its tensors (None takes one out) and its JSON files; its faults."""

    def make(maker, tensors=None, config=None, hf=None, **sizes):
        path = maker(tmp_path / "sound", layers=LAYERS, **sizes)
        found = {n: (i.dtype, list(i.shape)) for n, i in inspect(path).tensors.items()}
        for name, spec in (tensors or {}).items():
            found.pop(name, None)
            if spec is not None:
                found[name] = spec
        content = json.loads((path / "config.json").read_text())
        if config:
            config(content)
        files = {}
        if (path / "hf_quant_config.json").exists():
            files["hf_quant_config.json"] = json.loads((path / "hf_quant_config.json").read_text())
            if hf:
                hf(files["hf_quant_config.json"]["quantization"])
        bad = write(tmp_path / "changed", found, content, files=files)
        return [fault for fault in inspect(bad).faults if fault.level != "info" and ours(fault)]

    return make


def ours(fault):
    return fault.check not in ("tokenizer-vocab", "chat-template")  # of which there are none


def quant(content):
    return content["quantization_config"]


def told(faults):
    return [(f.check, f.level, f.tensor, f.file.name, f.expected, f.found) for f in faults]


SHARD = "model.safetensors"


def test_the_sound_ones_have_no_fault(changed):
    for maker in (field.quasar, field.unsloth, field.radixark, field.nvidia_35b, field.flash_next):
        assert changed(maker) == [], maker.__name__


def test_declared_quantised_and_stored_dense(changed):
    name = f"{MLP}.down_proj"
    gone = [f"{name}.weight_{part}" for part in ("packed", "scale", "global_scale")]
    tensors = dict.fromkeys((*gone, f"{name}.input_global_scale"))
    faults = changed(field.unsloth, {**tensors, f"{name}.weight": ("BF16", [128, 256])})
    assert told(faults) == [
        ("quant-conflict", "fail", name, "config.json", "nvfp4-pack-quantized", "BF16")
    ]
    assert "config_groups.group_1" in faults[0].message


def test_left_out_and_stored_packed(changed):
    faults = changed(field.unsloth, config=lambda c: quant(c)["ignore"].append("lm_head"))
    assert told(faults) == [
        ("quant-conflict", "fail", "lm_head", "config.json", "dense", "fp8-channel")
    ]


def test_not_in_quantized_layers_and_stored_packed(changed):
    name = f"{field.TEXT}layers.3.self_attn.o_proj"

    def without(content):
        del content["quantized_layers"][name]

    faults = changed(field.radixark, config=lambda c: without(quant(c)), hf=without)
    assert told(faults) == [("quant-conflict", "fail", name, "config.json", "dense", "fp8-tensor")]


def test_two_configs_disagree(changed):
    def narrower(content):
        content["exclude_modules"].append("*layers.3.self_attn.o_proj")

    name = f"{field.TEXT}layers.3.self_attn.o_proj"
    assert told(changed(field.radixark, hf=narrower)) == [
        ("quant-conflict", "fail", name, "hf_quant_config.json", "modelopt-fp8", "left unquantised")
    ]


def test_two_configs_of_two_sizes(changed):
    def other(content):
        for entry in content["quantized_layers"].values():
            if "group_size" in entry:
                entry["group_size"] = 32

    faults = changed(field.radixark, hf=other)
    assert {(f.check, f.file.name) for f in faults} == {
        ("group-size-config", "hf_quant_config.json")
    }
    assert len(faults) == 3 * LAYERS + 1


def test_two_configs_of_two_methods(changed):
    faults = changed(field.radixark, config=lambda c: quant(c).update(quant_method="fp8"))
    first = next(fault for fault in faults if "method is" in fault.message)
    assert told([first]) == [
        ("quant-conflict", "fail", "", "hf_quant_config.json", "fp8", "modelopt")
    ]


def test_packed_without_a_config(changed):
    faults = changed(field.quasar, config=lambda c: c.pop("quantization_config"))
    assert [(f.check, f.expected, f.found) for f in faults] == [
        ("quant-conflict", "a quantization_config", "none")
    ]


def test_int4_within_nvfp4(changed):
    name = f"{MLP}.up_proj"
    faults = changed(
        field.unsloth,
        {
            f"{name}.weight_packed": ("I32", [256, 16]),
            f"{name}.weight_scale": ("BF16", [256, 4]),
            f"{name}.weight_shape": ("I64", [2]),
            f"{name}.weight_global_scale": None,
            f"{name}.input_global_scale": None,
        },
    )
    conflict = [fault for fault in faults if fault.check == "quant-conflict"]
    assert told(conflict) == [
        (
            "quant-conflict",
            "fail",
            name,
            "config.json",
            "nvfp4-pack-quantized",
            "pack-quantized-int4",
        )
    ]
    assert "fused-schemes" not in {fault.check for fault in faults}  # whose cause is told


def test_groups_of_another_size_than_the_config_has(changed):
    def larger(content):
        quant(content)["config_groups"]["group_1"]["weights"]["group_size"] = 32

    faults = changed(field.unsloth, config=larger)
    assert len(faults) == 3 * (LAYERS - 8)
    assert told(faults)[0] == (
        "group-size-config",
        "fail",
        f"{field.TEXT}layers.0.mlp.gate_proj",
        "config.json",
        "32 weights",
        "16 weights",
    )


def test_scales_of_another_shape(changed):
    name = f"{MLP}.up_proj.weight_scale"
    faults = changed(field.unsloth, {name: ("F8_E4M3", [256, 4])})
    assert told(faults) == [("nvfp4-scale", "fail", name, SHARD, "[256, 8]", "[256, 4]")]


def test_a_scale_for_the_tensor_where_rows_have_theirs(changed):
    name = f"{ATTENTION}.o_proj"
    faults = changed(field.unsloth, {f"{name}.weight_scale": ("BF16", [1])})
    assert told(faults) == [
        ("quant-conflict", "fail", name, "config.json", "a whole row", "the whole tensor")
    ]


def test_modelopt_names_under_compressed_tensors(changed):
    name = f"{MLP}.up_proj"
    tensors = {f"{name}.weight_packed": None, f"{name}.weight_global_scale": None}
    tensors |= {f"{name}.weight": ("U8", [256, 64]), f"{name}.weight_scale_2": ("F32", [])}
    faults = changed(field.unsloth, {**tensors, f"{name}.input_global_scale": None})
    direction = [fault for fault in faults if fault.check == "scale-direction"]
    assert told(direction) == [
        (
            "scale-direction",
            "fail",
            f"{name}.weight_scale_2",
            SHARD,
            "weight_global_scale",
            "weight_scale_2",
        )
    ]
    assert not any(fault.check == "quant-conflict" for fault in faults)


def test_both_global_scales(changed):
    name = f"{MLP}.up_proj"
    faults = changed(field.unsloth, {f"{name}.weight_scale_2": ("F32", [])})
    assert (
        "scale-direction",
        "fail",
        f"{name}.weight_scale_2",
        SHARD,
        "one of the two",
        "both",
    ) in told(faults)


def test_a_method_without_a_rule(changed):
    def nvfp4(content):
        content["quantization_config"] = {
            "quant_method": "nvfp4",
            "group_size": 16,
            "modules_to_not_convert": ["lm_head", "self_attn", "linear_attn", "mtp", "visual"],
        }

    faults = changed(field.reexport, config=nvfp4, hf=None)
    warned = [fault for fault in faults if fault.check == "scale-direction"]
    assert [(f.level, f.tensor) for f in warned] == [
        ("warn", f"{field.TEXT}layers.0.mlp.gate_proj.weight_scale_2")
    ]


@pytest.mark.parametrize(
    ("maker", "tensor"),
    [
        (field.unsloth, f"{MLP}.up_proj.weight_scale"),
        (field.unsloth, f"{ATTENTION}.q_proj.weight_scale"),
        (field.radixark, f"{ATTENTION}.q_proj.weight_scale"),
        (field.radixark, f"{MLP}.up_proj.weight_scale"),
        (field.flash_next, "mtp.layers.0.mlp.experts.3.up_proj.weight_scale_inv"),
        (field.flash_next, f"{field.TEXT}layers.1.ple.ple_embedding.ngram_embedding.weight_scale"),
    ],
)
def test_a_quantised_weight_without_its_scale(changed, maker, tensor):
    faults = changed(maker, {tensor: None})
    checks = {fault.check for fault in faults if fault.level == "fail"}
    assert checks <= {"scale-layout", "nvfp4-scale", "quant-conflict", "fused-schemes"}
    missing = [fault for fault in faults if fault.found == "no such tensor"]
    assert {fault.tensor.rpartition(".")[2] for fault in missing} == {tensor.rpartition(".")[2]}
    assert {fault.file.name for fault in missing} == {SHARD}


def test_a_scale_without_its_weight(changed):
    name = f"{MLP}.up_proj"
    faults = changed(field.unsloth, {f"{name}.weight_packed": None})
    first = next(fault for fault in faults if name in fault.tensor)
    assert (first.check, first.level) == ("scale-layout", "fail")


@pytest.mark.parametrize(
    ("part", "other"),
    [(f"{ATTENTION}.k_proj", "q_proj"), (f"{GDN}.in_proj_z", "in_proj_qkv")],
)
def test_parts_of_a_joined_layer(changed, part, other):
    shape = [64 if "k_proj" in part else 128, 128]
    tensors = {f"{part}.weight": ("BF16", shape), f"{part}.weight_scale": None}
    config = lambda c: quant(c)["ignore"].append(part)  # noqa: E731
    faults = changed(field.unsloth, tensors, config)
    assert told(faults) == [("fused-schemes", "fail", part, SHARD, "float-quantized", "dense")]
    assert f"{other} is float-quantized" in faults[0].message


def test_a_layer_lacks_what_its_like_have(changed):
    names = [f"{ATTENTION}.q_norm.weight", f"{GDN}.dt_bias"]
    faults = changed(field.quasar, dict.fromkeys(names))
    assert [(f.check, f.tensor, f.found) for f in faults] == [
        ("tensor-set", "layers.3.self_attn.q_norm", "no such tensor"),
        ("tensor-set", "layers.4.linear_attn.dt_bias", "no such tensor"),
    ]


def test_several_layers_may_lack_what_others_have(changed):
    """Layers that share the keys of others have no projection of their own for them."""
    shared = dict.fromkeys(f"{field.TEXT}layers.{n}.linear_attn.norm.weight" for n in (12, 13, 14))
    faults = changed(field.quasar, shared)
    assert [(f.check, f.level) for f in faults] == [("tensor-set", "warn")] * 3


def test_thousands_of_unlike_layers_take_no_time(tmp_path: Path):
    tensors = {f"model.layers.{n}.part_{n}.weight": ("BF16", [1]) for n in range(8000)}
    begin = time.perf_counter()
    inspect(write(tmp_path / "m", tensors, {}))
    assert time.perf_counter() - begin < 2


def test_a_layer_is_missing(changed):
    base = f"{field.TEXT}layers.15."
    names = [n for n in field.hybrid(lambda _: field.ct_nvfp4, LAYERS) if n.startswith(base)]
    tensors = {**dict.fromkeys(names), f"{base}self_attn.q_norm.weight": None}
    faults = changed(field.quasar, tensors)
    assert [(f.check, f.tensor, f.expected, f.found) for f in faults] == [
        ("tensor-set", "layers.15", "layers 0 to 15", "15 layers")
    ]


def test_a_layer_beyond_the_config(changed):
    name = f"{field.TEXT}layers.17.input_layernorm.weight"
    faults = changed(field.quasar, {name: ("BF16", [128])})
    assert told(faults)[0] == (
        "tensor-set", "fail", name, SHARD, "layers 0 to 16", "layer 17"
    )  # fmt: skip


@pytest.mark.parametrize("number", [0, 5, 7])
def test_an_expert_is_missing(changed, number):
    name = f"{field.TEXT}layers.2.mlp.experts.{number}.up_proj"
    gone = [f"{name}.weight", f"{name}.weight_scale", f"{name}.weight_scale_2"]
    faults = changed(field.nvidia_35b, dict.fromkeys(gone))
    assert [(f.check, f.tensor, f.expected, f.found) for f in faults] == [
        ("tensor-set", name, "experts 0 to 7", "7 experts")
    ]


def test_an_expert_beyond_the_config(changed):
    base = f"{field.TEXT}layers.2.mlp.experts.8.up_proj"
    faults = changed(field.nvidia_35b, field.w4a16_nvfp4(base, 256, 128))
    assert [(f.check, f.tensor, f.found) for f in faults] == [
        ("tensor-set", f"{base}.weight", "expert 8")
    ]


def test_one_module_under_two_spellings(changed):
    name = "model.layers.0.input_layernorm.weight"
    faults = changed(field.quasar, {name: ("BF16", [128])})
    assert [(f.check, f.tensor, f.found) for f in faults] == [("tensor-set", name, "both")]


def test_an_orphan(changed):
    name = f"{MLP}.up_proj.weight_zero"
    faults = changed(field.quasar, {name: ("I32", [1])})
    assert [(f.check, f.level, f.tensor) for f in faults] == [("tensor-set", "warn", name)]


def test_a_head_is_missing(changed):
    faults = changed(field.quasar, {"lm_head.weight": None})
    assert told(faults) == [
        (
            "head-tied",
            "fail",
            "lm_head.weight",
            "config.json",
            "lm_head.weight",
            "no such tensor",
        )
    ]


def test_a_head_that_is_tied(changed):
    faults = changed(field.quasar, config=lambda c: c.update(tie_word_embeddings=True))
    assert [(f.check, f.level, f.tensor, f.found) for f in faults] == [
        ("head-tied", "warn", "lm_head", "both")
    ]


def test_drafting_layers_that_no_list_leaves_out(changed):
    faults = changed(field.quasar, config=lambda c: quant(c)["ignore"].remove("re:^mtp.*"))
    assert {(f.check, f.level, f.found) for f in faults} == {("quant-conflict", "warn", "BF16")}
    assert {f.tensor.split(".")[0] for f in faults} == {"mtp"}


def test_kv_caches_of_two_types(changed):
    def other(content):
        content["kv_cache_quant_algo"] = "NVFP4"

    faults = changed(
        field.radixark,
        config=lambda c: quant(c).update(kv_cache_scheme={"num_bits": 8, "type": "float"}),
        hf=other,
    )
    assert told(faults) == [
        ("kv-scheme-conflict", "fail", "", "hf_quant_config.json", "fp8", "nvfp4")
    ]
