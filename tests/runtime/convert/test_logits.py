"""A converted checkpoint in the engine against a plain-torch Llama on its dequantised weights."""

import pytest
import torch

from volta_runtime import ops
from volta_runtime.convert import convert_gguf


@pytest.fixture(autouse=True)
def kernels():
    try:
        ops.kernels_info()
    except ops.KernelsMissingError as error:
        pytest.skip(str(error))


def test_tiny_model(make_gguf, tmp_path, reference):
    out = tmp_path / "out"
    convert_gguf(make_gguf(), out)
    ids = torch.randint(0, 265, (40,), generator=torch.Generator().manual_seed(1))
    assert reference.engine_error(out, ids) < 1e-3


@pytest.mark.slow
def test_demo_model(demo_gguf, tmp_path, reference):
    out = tmp_path / "out"
    convert_gguf(demo_gguf, out)
    assert reference.engine_error(out, reference.windows(out)[0, :40]) < 1e-3
