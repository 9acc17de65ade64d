"""gpt-oss with MXFP4 experts: python gpt_oss.py, with requirements-ct.txt.

transformers makes the model and reads it back; its quantiser needs a GPU, so the codes are rounded
here, to the nearest E2M1 below the greatest power of two.
"""

import json
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import ROOT, finish

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "architectures": ["GptOssForCausalLM"],
}


def mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks [E, N, K/32, 16] and scales [E, N, K/32] of a weight [E, K, N]."""
    groups = weight.float().transpose(1, 2).unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    scaled = groups / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[..., ::2] | codes[..., 1::2] << 4).byte(), (exponent + 127).byte()


def main() -> None:
    torch.manual_seed(0)
    directory = ROOT / "gpt-oss"
    shutil.rmtree(directory, ignore_errors=True)
    config = transformers.GptOssConfig(**SIZES, dtype=torch.bfloat16)
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, std=0.02) if "experts" in name else None
    model.save_pretrained(directory)

    tensors = load_file(directory / "model.safetensors")
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = mxfp4(tensors.pop(name))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    text = json.loads((directory / "config.json").read_text())
    text["quantization_config"] = {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(text, indent=2) + "\n")

    back = transformers.GptOssForCausalLM.from_pretrained(
        directory, quantization_config=transformers.Mxfp4Config(dequantize=True)
    )
    shown = ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj")
    expected = {name: back.get_parameter(name).transpose(1, 2) for name in shown}
    finish(directory.name, "mxfp4-blocks", expected, "torch", "transformers")


if __name__ == "__main__":
    main()
