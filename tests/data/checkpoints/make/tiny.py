"""What the makers share: tiny models with fixed weights, and the record of what made them."""

import importlib.metadata
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = ROOT / "expected"

# Widths that divide no block of 128, but all smaller groups.
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def llama(dtype: torch.dtype = torch.bfloat16, **sizes) -> torch.nn.Module:
    """A Llama with the same random weights each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES | sizes, dtype=dtype, architectures=["LlamaForCausalLM"]
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def write_tokenizer(directory: str) -> None:
    """Bytes, one token each, for a library that will not go without."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({token: i for i, token in enumerate(alphabet)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="a", eos_token="b"
    )
    fast.save_pretrained(directory)


def finish(name: str, row: str, expected: dict[str, torch.Tensor], *libraries: str) -> None:
    """Keep what the library made of its own codes, by module, with the row and who made them."""
    kept = {module: weight.detach().contiguous() for module, weight in expected.items()}
    versions = {library: importlib.metadata.version(library) for library in libraries}
    save_file(kept, EXPECTED / f"{name}.safetensors", {"row": row} | versions)
    print(name, sum(file.stat().st_size for file in (ROOT / name).iterdir()))


# One weight, of neither square nor transposable shape, is enough to hold ours against.
SHOWN = ("model.layers.1.mlp.down_proj",)
