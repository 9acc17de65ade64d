"""What the conversion to NVFP4 costs in quality, by a plain-torch Llama independent of the engine.

    python tests/bench/quality.py --gguf FILE.gguf --checkpoint DIR [--write]

Perplexity of the GGUF source decoded to FP32 and of the NVFP4 checkpoint, on the text of the
GPL-3 in six windows of 512 tokens, and the engine's logits against this Llama's. Exits 1 when the
ratio of perplexities or the relative error of the logits is above its limit.

The source runs with its rows and its rope as GGUF has them (adjacent pairs), the checkpoint with
Hugging Face's (two halves), so that a wrong reordering of rows shows as a broken model.
"""

import argparse
import datetime
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from volta_runtime.checkpoint import open_checkpoint
from volta_runtime.layers import Segment
from volta_runtime.models.registry import load_model

HERE = Path(__file__).parent
TEXT = HERE.parent / "data" / "runtime" / "gpl-3.txt"
WINDOW, WINDOWS = 512, 6
MAX_RATIO, MAX_LOGIT_ERROR = 1.20, 1e-3

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}


def checkpoint_weights(directory: Path) -> dict[str, Tensor]:
    """The NVFP4 checkpoint's weights in FP32, by Hugging Face name."""
    stored = load_file(directory / "model.safetensors")
    weights = {}
    for name, tensor in stored.items():
        module, _, parameter = name.rpartition(".")
        if parameter == "weight":
            weights[name] = tensor.float()
        elif parameter == "weight_packed":
            codes = torch.stack([tensor & 15, tensor >> 4], dim=-1).flatten(1).long()
            values = E2M1[codes & 7] * (1 - 2 * (codes >> 3))
            scale = stored[f"{module}.weight_scale"].float().repeat_interleave(16, dim=1)
            weights[f"{module}.weight"] = values * scale / stored[f"{module}.weight_global_scale"]
    return weights


def gguf_weights(file: Path) -> dict[str, Tensor]:
    """The GGUF's weights in FP32, rows as they are, by Hugging Face name."""
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        *layer, name, _ = tensor.name.replace("blk", "layers").split(".")
        path = ".".join(["model", *layer, GGUF_NAMES[name], "weight"])
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weights[path] = torch.from_numpy(values.copy())
    return weights


def rotate(x: Tensor, theta: float, adjacent: bool) -> Tensor:
    """Rope over x [T, heads, d]: pairs are (2i, 2i+1) if adjacent, else (i, i + d/2)."""
    length, _, d = x.shape
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.arange(length, dtype=torch.float64)[:, None, None] * frequency
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = (x[..., 0::2], x[..., 1::2]) if adjacent else x.chunk(2, dim=-1)
    a, b = a * cos - b * sin, b * cos + a * sin
    return torch.stack([a, b], -1).flatten(-2) if adjacent else torch.cat([a, b], -1)


def logits(
    weights: dict[str, Tensor], config: dict[str, Any], ids: Tensor, adjacent: bool = False
) -> Tensor:
    """A Llama forward pass in FP32: ids [T] to logits [T, vocabulary]."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], config["rms_norm_eps"])

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T

    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    theta, length = config["rope_theta"], len(ids)
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        h = norm(x, f"{block}.input_layernorm")
        q = linear(h, f"{block}.self_attn.q_proj").view(length, heads, -1)
        k = linear(h, f"{block}.self_attn.k_proj").view(length, kv_heads, -1)
        v = linear(h, f"{block}.self_attn.v_proj").view(length, kv_heads, -1)
        q, k = rotate(q, theta, adjacent), rotate(k, theta, adjacent)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        scores += torch.full((length, length), -torch.inf).triu(1)
        h = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + linear(h, f"{block}.self_attn.o_proj")
        h = norm(x, f"{block}.post_attention_layernorm")
        h = F.silu(linear(h, f"{block}.mlp.gate_proj")) * linear(h, f"{block}.mlp.up_proj")
        x = x + linear(h, f"{block}.mlp.down_proj")
    head = "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"
    return linear(norm(x, "model.norm"), head)


def windows(directory: Path) -> Tensor:
    """The text's first tokens, [WINDOWS, WINDOW]."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids
    return torch.tensor(ids[: WINDOW * WINDOWS]).view(WINDOWS, WINDOW)


@torch.inference_mode()
def perplexity(
    weights: dict[str, Tensor], config: dict[str, Any], ids: Tensor, adjacent: bool = False
) -> float:
    """exp of the mean negative log-likelihood of every token but each window's first."""
    losses = [
        F.cross_entropy(logits(weights, config, window, adjacent)[:-1], window[1:])
        for window in ids
    ]
    return float(torch.stack(losses).mean().exp())


@torch.inference_mode()
def engine_error(directory: Path, ids: Tensor) -> float:
    """Largest difference of the engine's logits on the CPU, relative to the largest logit.

    The prompt, which is all but the last 8 of ids [T], goes through in one pass, the rest token by
    token.
    """
    checkpoint = open_checkpoint(directory)
    model = load_model(checkpoint, torch.device("cpu"), max_len=len(ids))
    cache = model.make_cache(1).acquire()
    pieces = [ids[:-8], *ids[-8:].split(1)]
    ours = torch.cat([model.forward(piece, [Segment(cache, len(piece))]) for piece in pieces])
    theirs = logits(checkpoint_weights(directory), dict(checkpoint.config), ids)[-9:]
    return float((ours - theirs).abs().max() / theirs.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="record under tests/bench/results/")
    args = parser.parse_args()

    config = json.loads((args.checkpoint / "config.json").read_text(encoding="utf-8"))
    ids = windows(args.checkpoint)
    source = perplexity(gguf_weights(args.gguf), config, ids, adjacent=True)
    converted = perplexity(checkpoint_weights(args.checkpoint), config, ids)
    error = engine_error(args.checkpoint, ids[0])
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    result = {
        "bench": "quality",
        "date": today,
        "source": args.gguf.name,
        "conversion": json.loads((args.checkpoint / "volta_convert.json").read_text()),
        "text": {"file": TEXT.name, "window": WINDOW, "windows": WINDOWS},
        "perplexity": {"source": round(source, 3), "nvfp4": round(converted, 3)},
        "ratio": round(converted / source, 4),
        "engine_logit_error": float(f"{error:.2e}"),
        "limits": {"ratio": MAX_RATIO, "engine_logit_error": MAX_LOGIT_ERROR},
        "versions": {name: version(name) for name in ("torch", "gguf", "tokenizers", "numpy")}
        | {"python": platform.python_version()},
    }
    print(json.dumps(result, indent=2))
    if args.write:
        file = HERE / "results" / f"quality-{today}.json"
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    raise SystemExit(converted / source > MAX_RATIO or error > MAX_LOGIT_ERROR)


if __name__ == "__main__":
    main()
