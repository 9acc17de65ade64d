"""What is told of a build that the GPU at hand cannot run."""

import re

import pytest
import torch

from volta_runtime.ops import KernelsMissingError, native

V100 = ("sm_70", "compute_70")
MACHINE_CODE = ("sm_80", "sm_90")


@pytest.fixture
def gpu(monkeypatch):
    """gpu(archs, capability): the kernels as built for archs, beside such a GPU."""

    def present(archs, capability):
        asked = []

        class Kernels:
            cuda_archs = archs
            cpu_isa = 0
            compiler = "13"

        def get_device_capability(device):
            asked.append(device)
            return capability

        monkeypatch.setattr(native, "kernels", Kernels)
        monkeypatch.setattr(torch.cuda, "get_device_capability", get_device_capability)
        return asked

    native._require_code.cache_clear()
    yield present
    native._require_code.cache_clear()


@pytest.mark.parametrize(
    ("archs", "capability"),
    [
        (V100, (7, 0)),
        (V100, (7, 5)),
        (V100, (9, 0)),  # by PTX
        (V100, (12, 0)),
        (MACHINE_CODE, (8, 0)),
        (MACHINE_CODE, (8, 6)),
        (MACHINE_CODE, (9, 0)),
    ],
)
def test_a_gpu_that_runs_the_kernels_is_asked_once(gpu, archs, capability):
    asked = gpu(archs, capability)
    for _ in range(3):
        native.require_kernels(torch.device("cuda:1"))
    assert asked == [torch.device("cuda:1")]


@pytest.mark.parametrize(
    ("archs", "capability", "number"),
    [
        (V100, (6, 1), 61),
        (("sm_75", "compute_75"), (7, 0), 70),
        (MACHINE_CODE, (7, 0), 70),
        (MACHINE_CODE, (10, 0), 100),  # machine code is of one major version
    ],
)
def test_a_gpu_that_runs_none_is_told_in_a_sentence(gpu, archs, capability, number):
    asked = gpu(archs, capability)
    device = torch.device("cuda:0")
    message = (
        f"the compiled kernels were built for {', '.join(archs)}, none of which runs on cuda:0 "
        f"(sm_{number}): build them with CMAKE_ARGS='-DVOLTA_CUDA=ON "
        f"-DVOLTA_CUDA_ARCHITECTURES={number}' VOLTA_BUILD_KERNELS=1 pip install ."
    )
    for use in (native.require_kernels, lambda device: native.launch("rms_norm", device)):
        with pytest.raises(KernelsMissingError, match=f"^{re.escape(message)}$"):
            use(device)
    assert asked == [device, device]
    assert native.kernels_info()["archs"] == list(archs)
