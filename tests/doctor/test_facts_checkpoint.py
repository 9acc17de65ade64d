"""Models by their headers: safetensors, config.json, GGUF."""

import json
import os
import struct

import pytest

from volta_doctor.facts import checkpoint, serve
from volta_doctor.facts.checkpoint import gguf
from volta_doctor.facts.serve import ServeFacts, Server
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.probe import CannotLook

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def safetensors(**sizes):
    """A file with these tensors of U8, zeros all."""
    header, end = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(end)


def metadata(*pairs, version=3):
    """The head of a GGUF file; a pair is key, type, struct code or None for text, value."""

    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    data = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs))
    for key, kind, code, value in pairs:
        data += text(key) + struct.pack("<I", kind)
        if kind == 9:
            element, values = value
            data += struct.pack("<IQ", element, len(values))
            data += b"".join(
                text(v) if element == 8 else struct.pack(f"<{code}", v) for v in values
            )
        else:
            data += text(value) if kind == 8 else struct.pack(f"<{code}", value)
    return data


QWEN_GGUF = (
    ("general.architecture", 8, None, "qwen3"),
    ("tokenizer.ggml.tokens", 9, None, (8, ["a", "bc"] * 3000)),
    ("tokenizer.ggml.scores", 9, "f", (6, [0.5] * 5000)),
    ("tokenizer.ggml.add_bos_token", 7, "?", False),
    ("qwen3.block_count", 4, "I", 36),
    ("qwen3.context_length", 4, "I", 40960),
    ("qwen3.embedding_length", 4, "I", 2560),
    ("qwen3.attention.head_count", 4, "I", 32),
    ("qwen3.attention.head_count_kv", 4, "I", 8),
    ("qwen3.attention.key_length", 4, "I", 128),
)


def test_a_checkpoint_in_shards(host):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    probe = host(
        files={
            "/m/config.json": json.dumps(LLAMA | {"quantization_config": {"quant_method": "awq"}}),
            "/m/model.safetensors.index.json": json.dumps(index),
            "/m/model-1.safetensors": safetensors(a=300),
            "/m/model-2.safetensors": safetensors(b=50, c=51),
            "/m/other.safetensors": safetensors(x=9999),
        }
    )
    found = checkpoint.read_directory(probe, "/m")
    assert (found["files"], found["weight_bytes"], found["largest_shard_bytes"]) == (2, 401, 300)
    assert (found["num_key_value_heads"], found["head_dim"]) == (8, 128)
    assert (found["torch_dtype"], found["quant_method"]) == ("bfloat16", "awq")
    assert (found["full_layers"], found["sliding_layers"]) == (32, 0)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (LLAMA, (32, 0, None)),
        # Qwen3.5: full attention in every fourth layer, in a text_config beside the vision tower
        (
            {"text_config": LLAMA | {"layer_types": [*["linear_attention"] * 3, "full_attention"]}},
            (1, 0, None),
        ),
        (LLAMA | {"full_attention_interval": 4}, (8, 0, None)),
        (LLAMA | {"hybrid_override_pattern": "M-M*-M*"}, (2, 0, None)),
        (LLAMA | {"sliding_window": 4096}, (0, 32, 4096)),  # Mistral 7B v0.1
        (LLAMA | {"sliding_window": 4096, "use_sliding_window": False}, (32, 0, None)),  # Qwen2
        (LLAMA | {"sliding_window": 512, "sliding_window_pattern": 6}, (5, 27, 512)),  # Gemma 3
        (
            LLAMA
            | {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18},
            (18, 18, 128),
        ),
        (
            LLAMA
            | {
                "attention_chunk_size": 8192,
                "layer_types": ["chunked_attention", "full_attention"],
            },
            (1, 1, 8192),
        ),
    ],
)
def test_layers_that_keep_keys_and_values(config, kept):
    found = checkpoint.shape_of(config)
    assert (found["full_layers"], found["sliding_layers"], found.get("sliding_window")) == kept
    assert found["num_hidden_layers"] == 32


def test_a_head_dim_of_its_own_and_as_many_kv_heads_as_heads():
    few = {"num_hidden_layers": 1, "num_attention_heads": 16, "hidden_size": 2048}
    assert checkpoint.shape_of(few)["num_key_value_heads"] == 16
    assert checkpoint.shape_of(few)["head_dim"] == 128
    assert checkpoint.shape_of(few | {"head_dim": 256, "num_key_value_heads": 2})["head_dim"] == 256


def test_a_config_of_nonsense_gives_nothing():
    config = {"num_hidden_layers": "32", "num_attention_heads": None, "text_config": [], "dtype": 7}
    assert checkpoint.shape_of(config) == {}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "/m: no such directory"),
        ({"/m/config.json": "{}"}, "/m: holds no safetensors or GGUF file"),
        (
            {"/m/model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"},
            "Git LFS pointer",
        ),
        ({"/m/model.safetensors": safetensors(a=9)[:-1]}, "truncated"),
        ({"/m/model.safetensors.index.json": "{}"}, "weight_map is missing or empty"),
        ({"/m/model.safetensors.index.json": "["}, "not sound JSON"),
        (
            {"/m/model.safetensors.index.json": '{"weight_map": {"a": "gone.safetensors"}}'},
            "gone.safetensors: cannot be read: No such file",
        ),
        ({"/m/a.gguf": "GGML"}, "no GGUF file"),
        ({"/m/a.gguf": metadata(*QWEN_GGUF)[:-1]}, "damaged or cut off"),
        ({"/m/a.gguf": metadata(version=1)}, "GGUF version 1"),
        ({"/m/a.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + b"\xff" * 8}, "damaged"),
    ],
)
def test_what_cannot_be_read_is_named(host, files, problem):
    with pytest.raises(CannotLook) as caught:
        checkpoint.read_directory(host(files=files), "/m")
    assert problem in str(caught.value)


def test_weights_are_sized_even_without_a_config(host):
    found = checkpoint.read_directory(
        host(files={"/m/model.safetensors": safetensors(a=7), "/m/lora.safetensors": b""}), "/m"
    )
    assert found["weight_bytes"] == 7
    assert "config.json" in found["problem"]


def test_gguf(host):
    probe = host(files={"/m/a.gguf": metadata(*QWEN_GGUF)})
    found = checkpoint.read_directory(probe, "/m/a.gguf")
    assert (found["format"], found["model_type"], found["files"]) == ("gguf", "qwen3", 1)
    assert (found["num_hidden_layers"], found["full_layers"]) == (36, 36)
    assert (found["num_key_value_heads"], found["head_dim"]) == (8, 128)
    assert found["max_position_embeddings"] == 40960
    assert found["weight_bytes"] == probe.path("/m/a.gguf").stat().st_size


def test_a_pipe_is_no_model_and_nobody_waits_for_it(host):
    probe = host(files={"/m": None})
    os.mkfifo(probe.path("/m/a.gguf"))
    with pytest.raises(CannotLook, match="not a file"):
        probe.within(5, lambda: gguf.read_metadata(probe, "/m/a.gguf"))


def test_gguf_of_a_hybrid_names_kv_heads_by_layer():
    pairs = {
        "general.architecture": "jamba",
        "jamba.block_count": 4,
        "jamba.attention.head_count": 8,
    }
    found = gguf.shape_of(pairs | {"jamba.attention.head_count_kv": [0, 0, 2, 0]})
    assert (found["full_layers"], found["num_key_value_heads"]) == (1, 2)


def test_gguf_in_parts(host):
    head = metadata(*QWEN_GGUF)
    parts = {f"/m/q-0000{n}-of-00002.gguf": head if n == 1 else b"GGUF..." for n in (1, 2)}
    found = checkpoint.read_directory(host(files=parts), "/m/q-00001-of-00002.gguf")
    assert (found["files"], found["weight_bytes"]) == (2, len(head) + 7)
    with pytest.raises(CannotLook, match=r"r-00002-of-00003\.gguf: no such file"):
        gguf.parts(host(files={"/m/r-00001-of-00003.gguf": head}), "/m/r-00001-of-00003.gguf")


def test_one_model_for_each_server_that_was_told_one(host, monkeypatch):
    def server(name, model, **more):
        return Server(name=name, engine="vllm", source="x", flags=Flags(model=model), **more)

    servers = [
        server("a", "/m", model_dir="/m"),
        server("b", "org/name"),
        server("c", "org/name", model_problem="/root: Permission denied: run again with sudo"),
        server("d", "/g/a.gguf"),
        server("e", None),
    ]
    monkeypatch.setattr(serve, "find", lambda probe: ServeFacts(servers=servers))
    files = {"/m/model.safetensors": safetensors(a=7), "/g/a.gguf": metadata(*QWEN_GGUF)}
    found = checkpoint.collect(host(files=files))
    assert [model.server for model in found.models] == ["a", "b", "c", "d"]
    assert found.of("a").weight_bytes == 7
    assert found.of("b").problem == (
        "org/name is no directory here, and not in the cache of Hugging Face's hub"
    )
    assert found.of("c").problem.startswith("/root: Permission denied")
    assert found.of("d").format == "gguf"
    assert found.of("e") is None
