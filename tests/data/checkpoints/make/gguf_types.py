"""GGUF files by the gguf library: python gguf_types.py, with requirements-ct.txt.

One is a Llama, one has a tensor of each type. Types that the library does not write are blocks of
random bytes: any bytes are a sound block.
"""

import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from tiny import ROOT, SIZES, finish, llama

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SKIPPED = {"Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32", "I64", "F64"}


def write_llama() -> None:
    """Linear layers Q4_1 and Q8_0, the embedding FP16, norms FP32."""
    directory = ROOT / "gguf-llama"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    writer = gguf.GGUFWriter(directory / "model.gguf", "llama")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(SIZES["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(SIZES["vocab_size"])])
    for name, weight in llama(torch.float32).model.named_parameters():
        part = f"model.{name}".removesuffix(".weight")
        block = ""
        if part.startswith("model.layers."):
            number, part = part.removeprefix("model.layers.").split(".", 1)
            block = f"blk.{number}."
        kind = Type.F32
        if weight.ndim == 2:
            kind = Type.Q8_0 if "down" in part else Type.Q4_1 if block else Type.F16
        data = gguf.quants.quantize(weight.detach().numpy(), kind)
        writer.add_tensor(f"{block}{NAMES[part]}.weight", data, raw_dtype=kind)
    close(writer, directory / "model.gguf", [])


def write_types() -> None:
    """[2, 256] of each type."""
    directory = ROOT / "gguf-types"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    random = np.random.default_rng(4)
    writer = gguf.GGUFWriter(directory / "model.gguf", "llama")
    weight = random.standard_normal((2, 256)).astype(np.float32)
    kinds = [kind for kind in Type if kind.name not in SKIPPED]
    for kind in kinds:
        try:
            data = gguf.quants.quantize(weight, kind)
        except NotImplementedError:
            data = blocks(random, kind)
        writer.add_tensor(f"{kind.name.lower()}.weight", data, raw_dtype=kind)
    writer.add_tensor("nvfp4.scale", np.array([0.75], np.float32))
    close(writer, directory / "model.gguf", kinds)


def blocks(random: np.random.Generator, kind: Type) -> np.ndarray:
    """Random bytes whose FP16 scales are finite."""
    shape = gguf.quant_shape_to_byte_shape((2, 256), kind)
    while True:
        data = random.integers(256, size=shape).astype(np.uint8)
        with np.errstate(all="ignore"):
            if np.isfinite(gguf.quants.dequantize(data, kind)).all():
                return data


def close(writer: gguf.GGUFWriter, file: Path, kinds: list[Type]) -> None:
    """Write the file, read it back with the library, and keep what that makes of it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    names = [f"{kind.name.lower()}.weight" for kind in kinds] or ["blk.1.ffn_down.weight"]
    expected = {}
    for name in names:
        tensor = tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        scale = tensors.get(name.replace(".weight", ".scale"))
        values = values if scale is None else values * scale.data
        expected[name.removesuffix(".weight")] = torch.from_numpy(values)
    finish(file.parent.name, "", expected, "gguf", "torch")


if __name__ == "__main__":
    write_llama()
    write_types()
