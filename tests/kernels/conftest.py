"""Random NVFP4 matrices with a float64 reference that shares no code with the kernels."""

import shutil
import subprocess
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from volta_runtime import ops

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
ISAS = ("scalar", "avx2")


@dataclass(frozen=True)
class Sample:
    """A matrix packed for the CPU, and as exact float64 numbers [n, k]."""

    packed: ops.NVFP4Weight
    exact: Tensor


def _exact(codes: Tensor, scales: Tensor, row_scale: Tensor) -> Tensor:
    table = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)
    nibbles = torch.stack((codes & 0xF, codes >> 4), -1).flatten(1)
    groups = scales.view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)
    return table[nibbles.long()] * groups * row_scale.double()[:, None]


@pytest.fixture
def sample():
    """make(n, k, scales=None, row_scale=None) -> Sample; random where not given."""

    def make(n, k, scales=None, row_scale=None):
        torch.manual_seed(n * 10007 + k)
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        if scales is None:
            scales = torch.randint(0, 126, (n, k // 16), dtype=torch.uint8)
        if row_scale is None:
            row_scale = torch.rand(n) * 1e-2 + 1e-4
        packed = ops.nvfp4_pack(codes, scales, row_scale)
        return Sample(packed, _exact(codes, scales, row_scale))

    return make


@pytest.fixture
def cuda():
    if not ops.kernels_info()["cuda"]:
        pytest.skip("the kernels were built without CUDA")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device that torch can use")
    return torch.device("cuda")


@pytest.fixture
def take_isa(monkeypatch):
    """take_isa(name): has the CPU kernels use that instruction set."""

    def take(isa):
        number = ISAS.index(isa)
        if number > ops.native.isa():
            pytest.skip(f"this CPU or build lacks {isa}")
        monkeypatch.setattr(ops.native, "isa", lambda: number)

    return take


@pytest.fixture(params=ISAS)
def isa(request, take_isa):
    """Each instruction set of the CPU kernels in turn."""
    take_isa(request.param)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where the operators run, in turn."""
    return request.getfixturevalue("cuda") if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def generator(request):
    """Random numbers that are others for each test and parameter."""
    return torch.Generator().manual_seed(sum(request.node.name.encode()))


@pytest.fixture
def native(device):
    """The dtype of activations and dequantised weights on the device."""
    return torch.float32 if device.type == "cpu" else torch.float16


@pytest.fixture
def worst():
    """worst(actual, exact) -> largest error relative to the largest exact value."""

    def measure(actual, exact):
        return ((actual.double().cpu() - exact).abs().max() / exact.abs().max()).item()

    return measure


@pytest.fixture(scope="session")
def configure(repo):
    """configure(build, *options) -> what CMake said of csrc/ without its Python layer."""
    if not shutil.which("cmake") or not shutil.which("ninja"):
        pytest.skip("cmake or ninja is not installed")

    def run(build, *options):
        where = ["-G", "Ninja", "-S", repo / "csrc", "-B", build]
        command = ["cmake", *where, "-DVOLTA_PYTHON=OFF", *options]
        return subprocess.run(command, capture_output=True, text=True)

    return run
