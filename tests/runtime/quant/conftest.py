"""The tiny checkpoints that each format's own library made, and what it decodes them to."""

from pathlib import Path

import numpy as np
import pytest

from volta_runtime.checkpoint import inspect
from volta_runtime.checkpoint.safetensors import read_header
from volta_runtime.quant import dequantize

ROOT = Path(__file__).parents[2] / "data" / "checkpoints"

_DTYPES = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E8M0": "u1", "U8": "u1",
    "I8": "i1", "I32": "<i4", "I64": "<i8",
}  # fmt: skip


@pytest.fixture(scope="session")
def array():
    """array(info) reads a tensor as dequantize() wants it, GGUF's blocks as the bytes of rows."""

    def array(info):
        begin, end = info.offsets
        data = np.fromfile(info.file, np.uint8, end - begin, offset=begin)
        if info.dtype in _DTYPES:
            return data.view(_DTYPES[info.dtype]).reshape(info.shape)
        return data.reshape(*info.shape[:-1], -1)

    return array


@pytest.fixture(scope="session")
def checkpoint():
    """checkpoint(name) of tests/data/checkpoints, inspected."""
    return lambda name: inspect(ROOT / name)


@pytest.fixture(scope="session")
def expected(array):
    """expected(name) is what the library made of the weights that it shows: TensorInfo, array."""

    def expected(name):
        header = read_header(ROOT / "expected" / f"{name}.safetensors")
        return {module: (info, array(info)) for module, info in header.tensors.items()}

    return expected


@pytest.fixture(scope="session")
def decoded(array):
    """decoded(module) of a checkpoint, by its row."""

    def decoded(module, **options):
        arrays = {name: array(info) for name, info in module.tensors.items()}
        return dequantize(module.format.name, arrays, module.group, **options)

    return decoded
