"""The scales of a checkpoint as its checks look at them: tensor, format, and what was read."""

from functools import lru_cache
from typing import NamedTuple

from volta_doctor.catalog.engines import Engine, engines
from volta_doctor.findings import Evidence
from volta_doctor.preflight.subject import Subject
from volta_runtime.checkpoint.formats import Parameter
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.scales import Scales, ScaleValues, scale_tensors
from volta_runtime.checkpoint.tensors import TensorInfo


class Scale(NamedTuple):
    """A scale tensor of a module; values are None where none were read."""

    module: Module
    parameter: Parameter
    info: TensorInfo
    values: ScaleValues | None

    def evidence(self, expected: str, found: str) -> Evidence:
        """Say both sides of a disagreement."""
        return Evidence(str(self.info.file), f"expected: {expected}, found: {found}")

    @property
    def plain(self) -> bool:
        """Whether it is a plain float of NVFP4 codes, which no public writer makes."""
        return in_nvfp4(self.module) and "F8_E4M3" not in self.parameter.dtypes

    @property
    def looked(self) -> str:
        """How much of it was read."""
        read, count = (self.values.read, self.values.size) if self.values else (0, 0)
        if read == count:
            return f"all {count:,} values" if count > 1 else "the one value"
        return f"{read:,} of {count:,} values, read at even distances"


def scales_of(subject: Subject, *roles: str) -> list[Scale]:
    """The tensors that play one of these roles in their modules' formats."""
    return [scale for scale in _scales(subject) if scale.parameter.role in roles]


@lru_cache(maxsize=1)
def _scales(subject: Subject) -> list[Scale]:
    values = subject.scales.values
    return [
        Scale(module, parameter, info, values.get(info.name))
        for module, parameter, info in scale_tensors(subject.checkpoint)
    ]


def looked(scales: Scales) -> str:
    """How much of all scales was read."""
    if scales.bytes_read == scales.bytes_in_all:
        return f"All scales were read ({scales.bytes_in_all:,} bytes)"
    return (
        f"{scales.bytes_read:,} of {scales.bytes_in_all:,} bytes of scales were read: all scalars,"
        " and of large tensors pieces at even distances (--all-scales reads all)"
    )


def in_nvfp4(module: Module) -> bool:
    """Whether a module is in one of the forms of NVFP4 that safetensors hold."""
    row = module.format
    return row is not None and row.container == "safetensors" and "nvfp4" in row.name


def loaders(subject: Subject, format_name: str) -> list[Engine]:
    """The engine that was named, or all that run a format on Volta."""
    if subject.engine:
        return [subject.engine]
    rows = ((engine, engine.supports(format_name)) for engine in engines().values())
    return [engine for engine, row in rows if row and row.runs]
