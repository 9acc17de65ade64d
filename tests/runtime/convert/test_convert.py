"""A tiny GGUF to a checkpoint: what comes out, and that nothing comes out of a bad source."""

import fcntl
import json
import os
import resource

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from volta_runtime.checkpoint import open_checkpoint, verify
from volta_runtime.convert import ConvertError, convert_gguf
from volta_runtime.quant import nvfp4


def read(checkpoint, name, dtype):
    info = checkpoint.tensors[name]
    begin, end = info.offsets
    return np.frombuffer(info.file.read_bytes()[begin:end], dtype).reshape(info.shape)


def decoded(values, kind=Type.Q4_1):
    """What the GGUF holds of a tensor, in FP32."""
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_checkpoint_is_sound_and_complete(make_gguf, tmp_path):
    steps = []
    convert_gguf(make_gguf(), tmp_path / "out", lambda *step: steps.append(step))
    verify(tmp_path / "out")
    checkpoint = open_checkpoint(tmp_path / "out")
    for name, module in checkpoint.modules.items():
        expected = "nvfp4-pack-quantized" if name.endswith("_proj") else "dense"
        assert module.format.name == expected
    assert len(checkpoint.modules) == 2 + 2 * 9
    assert [done for _, done, _ in steps] == list(range(1, 21))
    assert contents(tmp_path / "out").keys() == {
        "SHA256SUMS",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "volta_convert.json",
    }


def test_config_holds_the_hyperparameters(make_gguf, tmp_path):
    convert_gguf(make_gguf(), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["format"] == "nvfp4-pack-quantized"
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "vocab_size": 265,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: config.get(key) for key in expected} == expected


def test_linear_layers_are_the_quantised_source(make_gguf, tmp_path, tensors):
    convert_gguf(make_gguf(), tmp_path / "out")
    checkpoint = open_checkpoint(tmp_path / "out")
    prefix = "model.layers.1.mlp.gate_proj"
    expected = nvfp4.quantize(decoded(tensors["blk.1.ffn_gate.weight"]))
    packed = read(checkpoint, f"{prefix}.weight_packed", np.uint8)
    np.testing.assert_array_equal(packed, expected.packed)
    scale = read(checkpoint, f"{prefix}.weight_scale", np.uint8)
    np.testing.assert_array_equal(scale, expected.scale)
    assert read(checkpoint, f"{prefix}.weight_global_scale", "<f4") == expected.global_scale
    embedding = read(checkpoint, "model.embed_tokens.weight", "<f2")
    source = decoded(tensors["token_embd.weight"], Type.Q8_0).astype(np.float16)
    np.testing.assert_array_equal(embedding, source)


@pytest.mark.parametrize(("gguf_name", "module", "heads"), [("q", "q_proj", 4), ("k", "k_proj", 2)])
def test_rope_rows_return_to_two_halves(make_gguf, tmp_path, tensors, gguf_name, module, heads):
    convert_gguf(make_gguf(), tmp_path / "out")
    rows = decoded(tensors[f"blk.0.attn_{gguf_name}.weight"])
    head_dim = len(rows) // heads
    # llama.cpp rotates rows (2i, 2i+1) of a head together; Hugging Face rows (i, i + head_dim/2).
    order = [
        head * head_dim + 2 * i + half
        for head in range(heads)
        for half in range(2)
        for i in range(head_dim // 2)
    ]
    packed = read(
        open_checkpoint(tmp_path / "out"),
        f"model.layers.0.self_attn.{module}.weight_packed",
        np.uint8,
    )
    np.testing.assert_array_equal(packed, nvfp4.quantize(rows[order]).packed)


def test_untied_head_stays_dense(make_gguf, tmp_path, tensors):
    tensors["output.weight"] = tensors["token_embd.weight"] * 2
    convert_gguf(make_gguf(tensors=tensors), tmp_path / "out")
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.modules["lm_head"].format.name == "dense"
    assert checkpoint.config["tie_word_embeddings"] is False


def test_twice_gives_the_same_bytes(make_gguf, tmp_path):
    source = make_gguf()
    for out in ("one", "two"):
        convert_gguf(source, tmp_path / out)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_existing_output_is_kept_only_when_sound_and_of_the_same_source(
    make_gguf, tmp_path, tensors
):
    source, out = make_gguf(), tmp_path / "out"
    convert_gguf(source, out)
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    convert_gguf(source, out)
    assert before == {file: file.stat().st_mtime_ns for file in out.iterdir()}

    tensors["output_norm.weight"] *= 2
    other = make_gguf("other.gguf", tensors=tensors)
    with pytest.raises(ConvertError, match="out: exists and was converted from another source"):
        convert_gguf(other, out)
    (out / "config.json").write_text("{}")
    with pytest.raises(ConvertError, match=r"not a complete conversion .*config\.json: sha256"):
        convert_gguf(source, out)


def refused(source, out, message):
    """The conversion fails with this message, names the source, and leaves nothing behind."""
    with pytest.raises(ConvertError, match=message) as error:
        convert_gguf(source, out)
    assert str(source) in str(error.value)
    assert [path for path in out.parent.iterdir() if path != source] == []


def test_files_that_are_not_gguf_are_refused(tmp_path):
    source = tmp_path / "source.gguf"
    refused(source, tmp_path / "out", "cannot read: No such file")
    source.write_bytes(b"")
    refused(source, tmp_path / "out", "begins with b'', expected b'GGUF'")
    source.write_bytes(b"PK\x03\x04" + bytes(100))
    refused(source, tmp_path / "out", "not a GGUF file")


def test_truncated_files_are_refused_at_any_length(make_gguf, tmp_path):
    source = make_gguf()
    whole = source.read_bytes()
    for length in (4, 7, 20, 100, 1000, 5000, len(whole) // 2, len(whole) - 1000):
        source.write_bytes(whole[:length])
        refused(source, tmp_path / "out", f"{length} bytes that are not a whole GGUF file")


def test_what_has_no_row_is_refused_by_name(make_gguf, tmp_path, tensors):
    out = tmp_path / "out"
    refused(make_gguf(arch="mamba"), out, "architecture 'mamba'.*supported: llama")
    refused(make_gguf(linear_type=Type.Q5_0), out, r"tensor blk\.0\.attn_q.*type Q5_0.*Q4_1")
    refused(make_gguf(pre="tekken"), out, "pre 'tekken'.*supported: smollm")
    refused(make_gguf(metadata={"llama.rope.scaling.type": "yarn"}), out, "scaling 'yarn'")
    refused(make_gguf(metadata={"tokenizer.ggml.add_bos_token": True}), out, "add_bos_token")
    more = tensors | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    refused(make_gguf(tensors=more), out, r"tensor blk\.0\.attn_sinks\.weight has no place")
    del tensors["blk.1.ffn_up.weight"]
    refused(make_gguf(tensors=tensors), out, r"tensor blk\.1\.ffn_up\.weight is missing")


def test_weights_without_a_finite_encoding_are_refused(make_gguf, tmp_path, tensors):
    tensors["blk.0.attn_norm.weight"][3] = 1e5
    refused(make_gguf(tensors=tensors), tmp_path / "out", r"attn_norm.* 100000\.0 does not fit")


def test_full_disk_is_named_and_leaves_nothing(make_gguf, tmp_path):
    source = make_gguf()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, hard))  # as a disk with 16 KiB left
    try:
        with pytest.raises(ConvertError, match=r"out: no room to write it .*tiny\.gguf"):
            convert_gguf(source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [source]


def test_what_a_killed_run_left_is_cleared(make_gguf, tmp_path):
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    (left / "junk").write_bytes(b"")
    convert_gguf(make_gguf(), tmp_path / "out")
    verify(tmp_path / "out")
    assert not left.exists()
    assert not (tmp_path / "out" / "junk").exists()


def test_a_second_run_at_the_same_time_is_refused(make_gguf, tmp_path):
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    holder = os.open(partial, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(ConvertError, match="another conversion is writing"):
        convert_gguf(make_gguf(), tmp_path / "out")
    os.close(holder)
    assert partial.exists()
