"""A tiny Llama checkpoint with random weights, and an engine that serves it."""

import json
import queue
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from volta_runtime.checkpoint import open_checkpoint
from volta_runtime.engine import Engine, EngineConfig, SamplingParams
from volta_runtime.engine import Tokenizer as EngineTokenizer
from volta_runtime.models import load_model
from volta_runtime.quant.nvfp4 import quantize

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "float",
                    "strategy": "tensor_group",
                    "group_size": 16,
                },
            }
        },
        "ignore": ["lm_head"],
    },
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tensors(config):
    torch.manual_seed(0)
    c = config
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    kv = hidden // heads * c["num_key_value_heads"]
    tensors = {
        "model.embed_tokens.weight": torch.randn(c["vocab_size"], hidden).half(),
        "model.norm.weight": 1 + 0.1 * torch.randn(hidden).half(),
    }
    if not c["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(c["vocab_size"], hidden).half()
    for i in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = 1 + 0.1 * torch.randn(hidden).half()
        for number, (name, n, k) in enumerate(
            [
                ("self_attn.q_proj", hidden, hidden),
                ("self_attn.k_proj", kv, hidden),
                ("self_attn.v_proj", kv, hidden),
                ("self_attn.o_proj", hidden, hidden),
                ("mlp.gate_proj", c["intermediate_size"], hidden),
                ("mlp.up_proj", c["intermediate_size"], hidden),
                ("mlp.down_proj", hidden, c["intermediate_size"]),
            ]
        ):
            # Each module gets a spread, and so a global scale, of its own.
            weight = torch.randn(n, k) * k**-0.5 * (1 + number / 4)
            packed = quantize(weight.numpy())
            module = f"{prefix}.{name}"
            tensors[f"{module}.weight_packed"] = torch.from_numpy(packed.packed)
            tensors[f"{module}.weight_scale"] = torch.from_numpy(packed.scale).view(
                torch.float8_e4m3fn
            )
            tensors[f"{module}.weight_global_scale"] = torch.tensor([packed.global_scale])
    return tensors


def tiny_tokenizer():
    """Bytes, each a token of its own, behind the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(SPECIAL + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory):
    """make_tiny(change=None, **config) writes a checkpoint; `change` edits its tensors."""

    def make(change=None, **config) -> Path:
        directory = tmp_path_factory.mktemp("models") / "tiny"
        directory.mkdir()
        full = CONFIG | config
        tensors = tiny_tensors(full)
        if change:
            change(tensors)
        save_file(tensors, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(full))
        tiny_tokenizer().save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"})
        )
        return directory

    return make


@pytest.fixture(scope="session")
def tiny(make_tiny) -> Path:
    return make_tiny()


@pytest.fixture
def load():
    """load(directory, max_len=None, device="cpu") returns the model."""

    def load(directory, max_len=None, device="cpu"):
        return load_model(open_checkpoint(directory), torch.device(device), max_len)

    return load


@pytest.fixture
def make_engine(load, tiny):
    """make_engine(**EngineConfig fields) starts an engine that the test's end stops."""
    engines = []

    def make(**config) -> Engine:
        engine = Engine(load(tiny), EngineTokenizer(tiny), EngineConfig(**config))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.stop()


class Run:
    """A submitted request whose outputs are gathered."""

    def __init__(self, engine, prompt="hello", **params):
        defaults = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        self.outputs = queue.Queue()
        self.generation = engine.submit(
            engine.tokenizer.encode(prompt),
            SamplingParams(**defaults | params),
            self.outputs.put,
        )

    def next(self):
        return self.outputs.get(timeout=20)

    def finish(self):
        """The whole text and the last output."""
        text = ""
        while True:
            output = self.next()
            text += output.text
            if output.last:
                return text, output


@pytest.fixture
def run():
    return Run
