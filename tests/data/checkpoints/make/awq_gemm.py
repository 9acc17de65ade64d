"""A checkpoint by AutoAWQ: python awq_gemm.py, with requirements-awq.txt.

Its search for scales of activations needs data and a GPU; its quantiser, its packing and its
dequantiser do not, and they are what the format is.
"""

import shutil
import types

import torch
from awq.models._config import AwqConfig
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.packing_utils import dequantize_gemm
from tiny import ROOT, SHOWN, finish, llama

GROUP = 32


def main() -> None:
    model = llama(torch.float16)
    settings = types.SimpleNamespace(group_size=GROUP, w_bit=4, zero_point=True)
    for name, layer in list(model.model.named_modules()):
        if not isinstance(layer, torch.nn.Linear):
            continue
        layer.weight.data, scales, zeros = AwqQuantizer.pseudo_quantize_tensor(
            settings, layer.weight.data
        )
        packed = WQLinear_GEMM.from_linear(
            layer, 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.T.contiguous()
        )
        parent, _, last = name.rpartition(".")
        setattr(model.model.get_submodule(parent), last, packed)
    model.config.quantization_config = AwqConfig(q_group_size=GROUP).to_transformers_dict()
    directory = ROOT / "awq"
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    expected = {}
    for module in SHOWN:
        layer = model.get_submodule(module)
        expected[module] = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, GROUP).T
    finish(directory.name, "awq", expected, "autoawq", "torch", "transformers")


if __name__ == "__main__":
    main()
