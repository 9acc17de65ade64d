"""Checkpoints by compressed-tensors: python ct.py, with the pins of requirements-ct.txt."""

import shutil

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStrategy,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from tiny import ROOT, SHOWN, finish, llama

# Name of the checkpoint: row, arguments of the weights, of the inputs, dtype of the model.
FP4 = {"num_bits": 4, "type": "float", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
NVFP4 = FP4 | {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
MXFP4 = FP4 | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
MXFP8 = FP8 | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
INT = {"type": "int", "strategy": "group", "group_size": 32}
CASES = {
    "ct-nvfp4": ("nvfp4-pack-quantized", NVFP4, NVFP4 | {"dynamic": "local"}, torch.bfloat16),
    "ct-nvfp4a16": ("nvfp4-pack-quantized", NVFP4, None, torch.bfloat16),
    "ct-mxfp4": ("mxfp4-pack-quantized", MXFP4, None, torch.bfloat16),
    "ct-mxfp8": ("mxfp8", MXFP8, MXFP8 | {"dynamic": True}, torch.bfloat16),
    "ct-int4": ("pack-quantized-int4", INT | {"num_bits": 4}, None, torch.bfloat16),
    "ct-int4-asym": (
        "pack-quantized-int4",
        INT | {"num_bits": 4, "symmetric": False},
        None,
        torch.float16,
    ),
    "ct-int8": (
        "pack-quantized-int8",
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
        None,
        torch.float16,
    ),
    "ct-int8-bytes": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel"},
        {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        torch.bfloat16,
    ),
    "ct-fp8-tensor": ("float-quantized", FP8 | {"strategy": "tensor"}, None, torch.float32),
    "ct-fp8-channel": (
        "float-quantized",
        FP8 | {"strategy": "channel"},
        FP8 | {"strategy": "token", "dynamic": True},
        torch.bfloat16,
    ),
    "ct-fp8-block": (
        "float-quantized",
        FP8 | {"strategy": "block", "block_structure": [128, 128]},
        FP8 | {"strategy": "group", "group_size": 128, "dynamic": True},
        torch.bfloat16,
    ),
}


def observe(module: torch.nn.Linear) -> None:
    """Scales by the least and the greatest weight of each group."""
    args, weight = module.quantization_scheme.weights, module.weight.detach()
    n, k = weight.shape
    if args.strategy == QuantizationStrategy.TENSOR:
        groups = weight.reshape(1, -1)
    elif args.strategy == QuantizationStrategy.CHANNEL:
        groups = weight[:, None, :]
    elif args.strategy == QuantizationStrategy.BLOCK:
        rows, columns = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -k % columns, 0, -n % rows))
        blocks = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        groups = blocks.permute(0, 2, 1, 3).flatten(2)
    else:
        groups = weight.unflatten(1, (-1, args.group_size))
    shared = None
    if args.strategy == QuantizationStrategy.TENSOR_GROUP:
        shared = generate_gparam(weight.min(), weight.max())
        module.weight_global_scale.data = shared
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=shared)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.reshape(module.weight_scale.shape)
    if hasattr(module, "input_global_scale"):
        module.input_global_scale.data = torch.tensor([321.0])


def main() -> None:
    for name, (row, weights, inputs, dtype) in CASES.items():
        # Wide enough for several blocks, of which the last is cut.
        model = llama(dtype, **({"intermediate_size": 192} if "block" in name else {}))
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=QuantizationArgs(**weights),
            input_activations=QuantizationArgs(**inputs) if inputs else None,
        )
        config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
        apply_quantization_config(model, config)
        modules = {n: m for n, m in model.named_modules() if hasattr(m, "weight_scale")}
        for module in modules.values():
            observe(module)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        directory = ROOT / name
        shutil.rmtree(directory, ignore_errors=True)
        model.save_pretrained(directory)
        compressor.update_config(directory)
        compressor.decompress_model(model)
        expected = {n: modules[n].weight for n in SHOWN}
        finish(directory.name, row, expected, "compressed-tensors", "torch", "transformers")


if __name__ == "__main__":
    main()
