"""From a checkpoint's tensors to layers on a device.

Everything is checked against the model's shapes by header alone; then tensors are read one
module at a time, so that no more than one module is ever held in two forms.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from volta_runtime import ops
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.formats import BY_NAME
from volta_runtime.errors import ModelError
from volta_runtime.layers import (
    Gated,
    GatedLinear,
    HalfLinear,
    Linear,
    NVFP4Linear,
    PackedLinear,
    require_memory,
)
from volta_runtime.ops.packed import RowOrder
from volta_runtime.ops.packed_from import pack_nvfp4

Shape = tuple[int, ...]

_DTYPES = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}

# The formats that there are layers for.
_SERVED = ("dense", "nvfp4-pack-quantized")

_SHOWN = 5  # problems named in one message


class Weights:
    """Reads a checkpoint's modules as layers on one device."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self.device = device
        self._checkpoint = checkpoint

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Compare the whole checkpoint with the model's modules and their weight shapes.

        Raises ModelError naming a module in a format that has no layer, missing, unexpected and
        mis-shaped tensors, or when the weights are larger than the device's memory.
        """
        for module in shapes:
            if (name := self._format(module)) not in _SERVED:
                raise ModelError(
                    f"{self._checkpoint.path}: module {module} is {BY_NAME[name].title} ({name}),"
                    f" which volta-serve does not run; it runs {', '.join(_SERVED)}"
                )
        expected: dict[str, Shape] = {}
        for module, shape in shapes.items():
            stored = BY_NAME[self._format(module)].stored(shape)
            expected |= {f"{module}.{name}": part for name, part in stored.items()}
        tensors = self._checkpoint.tensors
        problems = [f"{name} is missing" for name in expected if name not in tensors]
        problems += [f"{name} is not part of the model" for name in tensors if name not in expected]
        problems += [
            f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
            for name, shape in expected.items()
            if name in tensors and tuple(tensors[name].shape) != shape
        ]
        if problems:
            more = len(problems) - _SHOWN
            raise ModelError(
                f"{self._checkpoint.path}: the tensors do not fit config.json: "
                + "; ".join(problems[:_SHOWN])
                + (f"; and {more} more" if more > 0 else "")
            )

        require_memory(
            self.device,
            sum(end - begin for begin, end in (info.offsets for info in tensors.values())),
            f"{self._checkpoint.path}: the weights",
            "stop what else uses it, or serve a smaller model",
        )

    def vector(self, module: str) -> Tensor:
        """A norm's weight, float32."""
        return self._finite(f"{module}.weight", torch.float32).to(self.device)

    def half(self, module: str) -> Tensor:
        """A dense weight as float16; refuses values beyond its range."""
        return self._finite(f"{module}.weight", torch.float16).to(self.device)

    def linear(self, *modules: str) -> Linear:
        """One layer for one module, or for several that read the same input, rows end to end.

        A fused layer keeps each part's global scale: it is a multiplier per output row.
        """
        return self._fused(modules, "plain")

    def gated(self, gate: str, up: str) -> Gated:
        """One layer of silu(gate) * up, for two modules that read the same input."""
        layer = self._fused((gate, up), "gate_up")
        return layer if isinstance(layer, PackedLinear) else GatedLinear(layer)

    def _fused(self, modules: tuple[str, ...], row_order: RowOrder) -> Linear:
        """Rows of the modules end to end; only PackedLinear has another row_order than that."""
        formats = {module: self._format(module) for module in modules}
        if len(set(formats.values())) > 1:
            held = ", ".join(f"{module} is {name}" for module, name in formats.items())
            raise ModelError(f"{self._checkpoint.path}: cannot fuse mixed weight formats: {held}")
        if formats[modules[0]] == "dense":
            return HalfLinear(torch.cat([self.half(module) for module in modules]))
        rows = [self._row_scale(module) for module in modules]
        codes = torch.cat([self._read(f"{module}.weight_packed") for module in modules])
        # As bytes, because torch cannot concatenate float8 everywhere.
        scales = torch.cat(
            [self._read(f"{module}.weight_scale").view(torch.uint8) for module in modules]
        )
        codes, scales, row_scale = (
            part.to(self.device) for part in (codes, scales, torch.cat(rows))
        )
        try:
            if self.device.type == "cuda":
                return PackedLinear(pack_nvfp4(codes, scales, row_scale, row_order))
            return NVFP4Linear(ops.nvfp4_pack(codes, scales, row_scale))
        except ValueError as error:
            held = " + ".join(modules)
            raise ModelError(f"{self._checkpoint.path}: cannot pack {held}: {error}") from None

    def _row_scale(self, module: str) -> Tensor:
        """The module's global scale, a divisor on disk, as a multiplier for each row."""
        name = f"{module}.weight_global_scale"
        scale = self._read(name)
        if not 0 < scale.item() < float("inf"):
            raise ModelError(
                f"{self._checkpoint.tensors[name].file}: {name} is {scale.item()}, expected a "
                "positive number; the checkpoint is damaged, fetch or convert it again"
            )
        rows = self._checkpoint.tensors[f"{module}.weight_packed"].shape[0]
        return scale.reciprocal().expand(rows)

    def _format(self, module: str) -> str:
        held = self._checkpoint.modules.get(module)
        return held.format.name if held and held.format else "dense"

    def _finite(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor converted to dtype; refuses values that are infinite or NaN in it."""
        tensor = self._read(name).to(dtype)
        if not tensor.isfinite().all():
            raise ModelError(
                f"{self._checkpoint.tensors[name].file}: {name} holds NaN or values beyond "
                f"{str(dtype).removeprefix('torch.')}'s range ({torch.finfo(dtype).max:g}); the "
                "checkpoint is damaged, or cannot be served in that precision"
            )
        return tensor

    def _read(self, name: str) -> Tensor:
        """A tensor on the CPU, read into memory of its own: a map would keep pages resident."""
        info = self._checkpoint.tensors[name]
        begin, end = info.offsets
        data = np.fromfile(info.file, np.uint8, end - begin, offset=begin)
        if data.nbytes != end - begin:
            raise ModelError(f"{info.file}: {name} ends {end - begin - data.nbytes} bytes short")
        return torch.from_numpy(data).view(_DTYPES[info.dtype]).view(info.shape)
