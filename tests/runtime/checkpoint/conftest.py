"""Makes checkpoints of zeros: only their headers matter here."""

import json

import pytest

from volta_runtime.checkpoint.safetensors import SafetensorsWriter, tensor_bytes

NVFP4_GROUP = {
    "targets": ["Linear"],
    "input_activations": None,
    "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
}


@pytest.fixture
def write_safetensors():
    def write(file, tensors):
        with SafetensorsWriter(file, tensors) as writer:
            for name, (dtype, shape) in tensors.items():
                writer.write(name, bytes(tensor_bytes(dtype, shape)))
        return file

    return write


@pytest.fixture
def nvfp4():
    """The tensors of one NVFP4 module, [8, 32] unless told otherwise."""

    def tensors(module, n=8, k=32):
        return {
            f"{module}.weight_packed": ("U8", (n, k // 2)),
            f"{module}.weight_scale": ("F8_E4M3", (n, k // 16)),
            f"{module}.weight_global_scale": ("F32", (1,)),
        }

    return tensors


@pytest.fixture
def make_checkpoint(tmp_path, write_safetensors):
    """Write a checkpoint; groups and ignore go to a compressed-tensors config."""

    def make(tensors, groups=None, ignore=(), **config):
        if groups is not None:
            config["quantization_config"] = {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {
                    f"group_{i}": NVFP4_GROUP | group for i, group in enumerate(groups)
                },
                "ignore": list(ignore),
            }
        (tmp_path / "config.json").write_text(json.dumps(config))
        write_safetensors(tmp_path / "model.safetensors", tensors)
        return tmp_path

    return make
