"""Checkpoints by NVIDIA ModelOpt: python modelopt_export.py, with requirements-modelopt.txt."""

import shutil

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from tiny import ROOT, finish, llama

# The one layer whose pre_quant_scale export does not fold into the layer before.
SHOWN = ("model.layers.0.self_attn.o_proj",)
SHOWN_OF_BLOCKS = ("model.layers.0.mlp.down_proj",)

CASES = {
    "modelopt-nvfp4": ("modelopt-nvfp4", mtq.NVFP4_DEFAULT_CFG),
    "modelopt-w4a16-nvfp4": ("modelopt-nvfp4", mtq.W4A16_NVFP4_CFG),
    "modelopt-nvfp4-awq": ("modelopt-nvfp4-awq", mtq.NVFP4_AWQ_LITE_CFG),
    "modelopt-fp8": ("modelopt-fp8", mtq.FP8_DEFAULT_CFG),
    "modelopt-fp8-block": ("modelopt-fp8", mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG),
}


def dequantized(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """What the library's own tensor classes make of a module."""
    weight, scale = tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"]
    if weight.dtype == torch.float8_e4m3fn:
        return FP8QTensor(weight.shape, torch.float32, weight).dequantize(
            dtype=torch.float32,
            scale=scale.squeeze(),
            block_sizes={-1: 128, -2: 128} if scale.ndim else {},
        )
    n, half_k = weight.shape
    values = NVFP4QTensor(torch.Size((n, half_k * 2)), torch.float32, weight).dequantize(
        dtype=torch.float32,
        scale=scale,
        double_scale=tensors[f"{module}.weight_scale_2"],
        block_sizes={-1: 16},
    )
    columns = tensors.get(f"{module}.pre_quant_scale")
    return values if columns is None else values * columns.float()


def on_cpu(inputs: torch.Tensor, block_size: int, amax: torch.Tensor, *_: int) -> torch.Tensor:
    """The trial quantisation of AWQ's search, whose kernel needs a GPU, by the same library."""
    shared = amax.float().amax() / (6 * 448)
    codes, scale, shared = NVFP4QTensor.quantize(
        inputs.clone(), block_size, weights_scaling_factor_2=shared
    )
    return codes.dequantize(
        dtype=inputs.dtype, scale=scale, double_scale=shared, block_sizes={-1: block_size}
    )


def main() -> None:
    tensor_quant.dynamic_block_quantize_op = on_cpu
    for name, (row, config) in CASES.items():
        # Several blocks each way, of which the last are cut.
        wide = {"hidden_size": 144, "intermediate_size": 144, "num_hidden_layers": 1}
        model = llama(torch.bfloat16, **(wide if "block" in name else {}))
        tokens = torch.randint(256, (4, 32), generator=torch.Generator().manual_seed(2))
        mtq.quantize(model, config, lambda m, tokens=tokens: m(tokens))
        directory = ROOT / name
        shutil.rmtree(directory, ignore_errors=True)
        export_hf_checkpoint(model, export_dir=directory)
        tensors = load_file(directory / "model.safetensors")
        shown = SHOWN_OF_BLOCKS if "block" in name else SHOWN
        expected = {module: dequantized(tensors, module) for module in shown}
        finish(directory.name, row, expected, "nvidia-modelopt", "torch", "transformers")


if __name__ == "__main__":
    main()
