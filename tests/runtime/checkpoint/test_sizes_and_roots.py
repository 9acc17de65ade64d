"""What stands beside a model's layers, sizes against config.json, and fields that no model has."""

from pathlib import Path

import pytest
from checkpoints import write

from volta_runtime.checkpoint import inspect

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}


def tensors(**names: str):
    """A small Llama; names: other ones of its embedding and its last norm, empty to leave out."""
    found = {
        names.get("embedding", "model.embed_tokens.weight"): ("F16", (32, 64)),
        names.get("norm", "model.norm.weight"): ("F16", (64,)),
    }
    for layer in ("model.layers.0", "model.layers.1"):
        shapes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
        found |= {f"{layer}.self_attn.{n}_proj.weight": ("F16", s) for n, s in shapes.items()}
        shapes = {"gate": (96, 64), "up": (96, 64), "down": (64, 96)}
        found |= {f"{layer}.mlp.{n}_proj.weight": ("F16", s) for n, s in shapes.items()}
        found[f"{layer}.input_layernorm.weight"] = ("F16", (64,))
    found.pop("", None)
    return found


def told(path: Path, held, config, check: str) -> list[str]:
    """The faults of a check, each with its tensor."""
    faults = inspect(write(path / "m", held, {**CONFIG, **config})).faults
    return [f"{fault.tensor} {fault.message}" for fault in faults if fault.check == check]


def test_what_is_missing_beside_the_layers(tmp_path: Path):
    found = told(tmp_path, tensors(embedding=""), {}, "tensor-set")
    assert [text.split()[0] for text in found] == ["model.embed_tokens.weight"]
    found = told(tmp_path / "norm", tensors(norm=""), {}, "tensor-set")
    assert [text.split()[0] for text in found] == ["model.norm.weight"]


@pytest.mark.parametrize(
    "names",
    [
        {"embedding": "model.tok_embeddings.weight"},  # InternLM2
        {"norm": "model.final_layernorm.weight"},  # Jamba
        {"norm": "model.embedding_norm.weight"},  # LFM2
        {"embedding": "", "norm": "fc.weight"},  # a draft, which shares them
    ],
)
def test_other_names_of_it_and_drafts_are_sound(tmp_path: Path, names):
    assert told(tmp_path, tensors(**names), {}, "tensor-set") == []


def test_a_layer_of_another_width_is_named_with_both(tmp_path: Path):
    held = tensors() | {"model.layers.1.mlp.up_proj.weight": ("F16", (128, 64))}
    found = told(tmp_path, held, {}, "tensor-set")
    assert len(found) == 1
    assert "layers.1.mlp.up_proj.weight has 128 outputs, and intermediate_size" in found[0]
    assert found[0].endswith("makes it 96")


@pytest.mark.parametrize(
    "config",
    [
        {"intermediate_size": [96, 128]},  # Gemma 3n: by layer
        {"intermediate_size": None, "block_configs": [{}, {}]},  # Nemotron-NAS
        {"use_double_wide_mlp": True},  # Gemma 4
    ],
)
def test_widths_by_layer_are_sound(tmp_path: Path, config):
    held = tensors() | {
        f"model.layers.1.mlp.{name}_proj.weight": ("F16", shape)
        for name, shape in {"gate": (128, 64), "up": (128, 64), "down": (64, 128)}.items()
    }
    assert told(tmp_path, held, config, "tensor-set") == []


def test_heads_of_two_kinds_are_sound(tmp_path: Path):
    held = tensors() | {"model.layers.1.self_attn.k_proj.weight": ("F16", (64, 64))}
    assert told(tmp_path, held, {"swa_num_key_value_heads": 4}, "tensor-set") == []
    assert len(told(tmp_path / "odd", held, {"num_attention_heads": 8}, "tensor-set")) > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", "two"),
        ("num_hidden_layers", 10**12),
        ("hidden_size", 64.5),
        ("num_attention_heads", -4),
        ("num_key_value_heads", []),
        ("text_config", []),
        ("architectures", "LlamaForCausalLM"),
    ],
)
def test_a_field_that_no_model_has_so(tmp_path: Path, field, value):
    found = told(tmp_path, tensors(), {field: value}, "config-json")
    assert len(found) == 1
    assert field in found[0]


def test_fields_that_are_null_or_by_layer_are_sound(tmp_path: Path):
    config = {"head_dim": None, "text_config": None, "num_key_value_heads": [2, 2]}
    assert told(tmp_path, tensors(), config, "config-json") == []
