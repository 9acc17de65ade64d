"""config.json and tensors resolved to one weight format per module, or refused by name."""

import json
import subprocess
import sys

import pytest

from volta_runtime.checkpoint import CheckpointError, open_checkpoint

EMBEDDING = {"model.embed_tokens.weight": ("F16", (16, 32))}
NORM = {"model.norm.weight": ("F32", (32,))}
DENSE = {"a.q_proj.weight": ("BF16", (8, 32)), "a.q_proj.bias": ("BF16", (8,))}
INT8 = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "group_size": None}}


def test_unquantised_checkpoint_is_dense(make_checkpoint):
    checkpoint = open_checkpoint(make_checkpoint(EMBEDDING | NORM | DENSE, model_type="llama"))
    assert set(checkpoint.modules.values()) == {"dense"}
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.tensors["a.q_proj.weight"].shape == (8, 32)


def test_class_target_covers_linear_layers_alone(make_checkpoint, nvfp4):
    path = make_checkpoint(EMBEDDING | NORM | nvfp4("a.q_proj"), groups=[{}])
    assert open_checkpoint(path).modules == {
        "a.q_proj": "nvfp4-pack-quantized",
        "model.embed_tokens": "dense",
        "model.norm": "dense",
    }


# Each case: targets of an NVFP4 group, then ignore, then whether a.q_proj is promised to be NVFP4.
PRECEDENCE = {
    "class": (["Linear"], [], True),
    "expression": (["re:.*q_proj"], [], True),
    "expression matches from the start": (["re:q_proj"], [], False),
    "exact": (["a.q_proj"], [], True),
    "a prefix is not a match": (["a"], [], False),
    "another class": (["Embedding"], [], False),
    "ignored by name": (["Linear"], ["a.q_proj"], False),
    "ignored by expression": (["a.q_proj"], ["re:.*q_proj"], False),
    "ignored by class": (["a.q_proj"], ["Linear"], False),
    "something else ignored": (["Linear"], ["lm_head"], True),
}


@pytest.mark.parametrize(("targets", "ignore", "quantised"), PRECEDENCE.values(), ids=PRECEDENCE)
@pytest.mark.parametrize("stored", ["nvfp4", "dense"])
def test_targets_and_ignore(make_checkpoint, nvfp4, targets, ignore, quantised, stored):
    tensors = nvfp4("a.q_proj") if stored == "nvfp4" else DENSE
    path = make_checkpoint(tensors, groups=[{"targets": targets}], ignore=ignore)
    if (stored == "nvfp4") == quantised:
        row = "nvfp4-pack-quantized" if stored == "nvfp4" else stored
        assert open_checkpoint(path).modules == {"a.q_proj": row}
    else:
        with pytest.raises(CheckpointError, match=r"module a\.q_proj \(Linear\)"):
            open_checkpoint(path)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_more_exact_target_wins_in_any_order(order):
    from volta_runtime.checkpoint.quantization import QuantizationConfig

    for exact, general in (("a.b", "re:a.*"), ("re:a.*", "Linear"), ("a.b", "Linear")):
        pair = [(exact, "one"), (general, "other")]
        config = QuantizationConfig(targets=tuple(pair[i] for i in order))
        assert config.format_of("a.b", "Linear") == "one"


REFUSED_CONFIGS = {
    "method": ({"quant_method": "gptq"}, "quant_method 'gptq' is not supported"),
    "no method": ({}, "quant_method None is not supported"),
    "no groups": ({"quant_method": "compressed-tensors"}, "config_groups is None"),
    "scheme": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": INT8}},
        r"config_groups\.g: weights scheme \(num_bits 8, type int.*supported: compressed-tensors",
    ),
    "activations": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"input_activations": {}}}},
        r"config_groups\.g: quantised input_activations",
    ),
    "ignore": (
        {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": "lm_head"},
        "ignore is 'lm_head', expected a list",
    ),
    "expression": (
        {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:("]},
        r"ignore 're:\(' is no regular expression",
    ),
}


@pytest.mark.parametrize(("entry", "message"), REFUSED_CONFIGS.values(), ids=REFUSED_CONFIGS)
def test_unsupported_config_is_refused(make_checkpoint, entry, message):
    path = make_checkpoint(DENSE, quantization_config=entry)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


def test_quantised_weight_without_its_scale_is_refused(make_checkpoint, nvfp4):
    for lost in ("weight_scale", "weight_global_scale"):
        path = make_checkpoint(without(nvfp4("a.q_proj"), f"a.q_proj.{lost}"), groups=[{}])
        with pytest.raises(CheckpointError, match=rf"a\.q_proj\.{lost}: is missing"):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "message"),
    [
        ("weight_scale", "F8_E4M3", (8, 3), r"weight_scale: has shape \[8, 3\], expected \[8, 2\]"),
        ("weight_scale", "F8_E4M3", (2, 8), r"expected \[8, 2\]"),
        ("weight_global_scale", "F32", (), r"weight_global_scale: has shape \[\], expected \[1\]"),
        ("weight_packed", "U8", (8, 20), r"weight_scale: has shape \[8, 2\], expected \[8, K/G\]"),
        ("weight_packed", "U8", (128,), r"weight_packed: has shape \[128\]"),
        ("weight_scale", "F8_E8M0", (8, 2), "weight_scale: is F8_E8M0, expected F8_E4M3"),
        ("weight_global_scale", "BF16", (1,), "weight_global_scale: is BF16, expected F32"),
    ],
)
def test_wrong_dtype_or_shape_is_refused(make_checkpoint, nvfp4, name, dtype, shape, message):
    tensors = nvfp4("a.q_proj") | {f"a.q_proj.{name}": (dtype, shape)}
    with pytest.raises(CheckpointError, match=message) as error:
        open_checkpoint(make_checkpoint(tensors, groups=[{}]))
    assert "a.q_proj" in str(error.value)


def test_fp8_weight_is_refused_by_name(make_checkpoint):
    tensors = {"a.weight": ("F8_E4M3", (8, 32)), "a.weight_scale": ("F32", (1,))}
    with pytest.raises(CheckpointError, match=r"module a \(Linear\) dense, but its tensors are fp8-tensor"):
        open_checkpoint(make_checkpoint(tensors))


@pytest.fixture
def sharded(make_checkpoint, write_safetensors):
    path = make_checkpoint({})
    (path / "model.safetensors").unlink()
    write_safetensors(path / "one.safetensors", EMBEDDING)
    write_safetensors(path / "two.safetensors", DENSE)
    weight_map = dict.fromkeys(EMBEDDING, "one.safetensors") | dict.fromkeys(
        DENSE, "two.safetensors"
    )

    def write(changes=None):
        index = {"weight_map": weight_map | (changes or {})}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        return path

    return write


def test_shards_are_read_through_the_index(sharded):
    checkpoint = open_checkpoint(sharded())
    assert checkpoint.tensors["a.q_proj.weight"].file.name == "two.safetensors"
    assert checkpoint.modules.keys() == {"a.q_proj", "model.embed_tokens"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b.weight": "one.safetensors"}, r"one\.safetensors: tensor b\.weight: .*absent"),
        ({"a.q_proj.bias": "one.safetensors"}, r"tensor a\.q_proj\.bias"),
        ({"b.weight": "three.safetensors"}, r"three\.safetensors: cannot read"),
        ({"b.weight": "../one.safetensors"}, "is not a file name in this directory"),
    ],
)
def test_index_that_disagrees_with_its_shards_is_refused(sharded, changes, message):
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(sharded(changes))


def test_missing_or_damaged_config_is_named(tmp_path, make_checkpoint):
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        open_checkpoint(tmp_path)
    config = make_checkpoint(DENSE) / "config.json"
    config.write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not sound JSON"):
        open_checkpoint(tmp_path)
    config.write_text("{}")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)


def test_reading_checkpoints_needs_neither_torch_nor_numpy():
    code = (
        "import sys; import volta_runtime.checkpoint;"
        " print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    path = ":".join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
