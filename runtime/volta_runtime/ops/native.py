"""The only importer of the compiled kernels: finds them, checks tensors for them, launches them.

Every launcher of csrc/ comes twice, as NAME_cpu and NAME_cuda, with the same arguments but for the
last: a number of threads, or a stream. Activations are float32 on the CPU and float16 on CUDA; sums
are float32 on both. Whatever a kernel could not survive (a wrong device, dtype, shape, stride or
alignment) is refused before it is launched.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

from volta_runtime.errors import VoltaError

ACTIVATION = {"cpu": torch.float32, "cuda": torch.float16}  # dtype of activations on a device
ALIGNMENT = 16  # bytes; CUDA kernels load so many at a time

P = ParamSpec("P")
R = TypeVar("R")


class KernelsMissingError(VoltaError):
    """The compiled kernels are absent, or lack what was asked for."""


class _Missing:
    """Stands in for the module, so that importing works and the first use tells what to do."""

    def __init__(self, error: ImportError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise KernelsMissingError(
            "the compiled kernels (volta_runtime._kernels) are missing from this installation: "
            f"build them with VOLTA_BUILD_KERNELS=1 pip install . ({self._error})"
        ) from self._error


def _load() -> Any:
    try:
        from volta_runtime import _kernels
    except ImportError as error:
        return _Missing(error)
    return _kernels


kernels: Any = _load()


def kernels_info() -> dict[str, Any]:
    """What was built: {"cuda": bool, "cpu": "avx2" | "scalar", "archs": [...], "build": str}.

    archs: what the CUDA kernels were built for, "sm_NN" as machine code, "compute_NN" as PTX.
    Raises KernelsMissingError when there are no compiled kernels.
    """
    return {
        "cuda": bool(kernels.cuda_archs),
        "cpu": ("scalar", "avx2")[kernels.cpu_isa],
        "archs": list(kernels.cuda_archs),
        "build": f"gcc {kernels.compiler}",
    }


def require_kernels(device: torch.device) -> None:
    """Raise KernelsMissingError or ValueError where no kernel can run on the device."""
    if device.type == "cuda" and not kernels.cuda_archs:
        raise KernelsMissingError(
            f"the compiled kernels were built without CUDA, but the tensors are on {device}: build "
            "them with CMAKE_ARGS=-DVOLTA_CUDA=ON VOLTA_BUILD_KERNELS=1 pip install ."
        )
    if device.type not in ACTIVATION:
        raise ValueError(f"there are kernels for cpu and cuda, not for {device.type}")
    if device.type == "cuda":
        _require_code(device)
    isa()  # so that a missing module is told at packing, not in the middle of a request


@functools.cache
def _require_code(device: torch.device) -> None:
    """Raise KernelsMissingError unless something that was built runs on this GPU."""
    capability = torch.cuda.get_device_capability(device)
    if any(_runs(arch, capability) for arch in kernels.cuda_archs):
        return
    number = "{}{}".format(*capability)
    raise KernelsMissingError(
        f"the compiled kernels were built for {', '.join(kernels.cuda_archs)}, none of which runs "
        f"on {device} (sm_{number}): build them with CMAKE_ARGS='-DVOLTA_CUDA=ON "
        f"-DVOLTA_CUDA_ARCHITECTURES={number}' VOLTA_BUILD_KERNELS=1 pip install ."
    )


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU runs "sm_NN", of its own major version, or "compute_NN", of any before."""
    kind, _, number = arch.partition("_")
    built = divmod(int(number), 10)
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def isa() -> int:
    """The CPU kernels' instruction set: 0 scalar, 1 AVX2."""
    return int(kernels.cpu_isa)


def stream(device: torch.device) -> int:
    """The current stream of a CUDA device, as the launchers take it."""
    return torch.cuda.current_stream(device).cuda_stream


def check(
    name: str,
    tensor: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> None:
    """Raise ValueError, with all numbers, unless the tensor is contiguous, aligned and as told."""
    if (
        tensor.dtype == dtype
        and tensor.shape == shape
        and tensor.device == device
        and tensor.is_contiguous()
        and (device.type == "cpu" or tensor.data_ptr() % ALIGNMENT == 0)
    ):
        return
    raise ValueError(
        f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, strides "
        f"{list(tensor.stride())}, address {tensor.data_ptr() % ALIGNMENT} past a multiple of "
        f"{ALIGNMENT}; needs contiguous {dtype} {list(shape)} on {device}"
        + (f" at a multiple of {ALIGNMENT}" if device.type == "cuda" else "")
    )


def launch(kernel: str, device: torch.device, *arguments: Tensor | int | float | None) -> None:
    """Call KERNEL_cpu or KERNEL_cuda; tensors become pointers, None the null pointer.

    Raises ValueError for sizes the kernel does not take and RuntimeError for a CUDA error.
    """
    flat = [a.data_ptr() if isinstance(a, Tensor) else 0 if a is None else a for a in arguments]
    if device.type == "cpu":
        getattr(kernels, f"{kernel}_cpu")(*flat, torch.get_num_threads())
        return
    require_kernels(device)
    with torch.cuda.device(device):
        getattr(kernels, f"{kernel}_cuda")(*flat, stream(device))


_LIBRARY = torch.library.Library("volta", "DEF")  # type: ignore[no-untyped-call]


def op(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as torch.ops.volta.NAME, and give back what callers use.

    schema: of torch.library, "name(Tensor x, Tensor(a!) out, float eps) -> Tensor".
    fake: the same signature over tensors without data, for torch.compile.

    Eager calls skip the dispatcher, which costs as much as a small kernel.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[P, R]) -> Callable[P, R]:
        _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, function, key)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"volta::{name}", fake, lib=_LIBRARY)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                result: R = getattr(torch.ops.volta, name)(*args, **kwargs)
                return result
            return function(*args, **kwargs)

        return call

    return register
