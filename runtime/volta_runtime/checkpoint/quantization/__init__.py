"""How a checkpoint says that its modules are quantised, in whichever dialect.

One file for each dialect and a row in DIALECTS, in _FILES too where it has a file of its own. What
names and patterns mean is in targets.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.quantization import (
    autoround,
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    modelopt,
    mxfp4,
    nvfp4,
)
from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import KvCache, Reading
from volta_runtime.checkpoint.quantization.targets import MOST, Targets
from volta_runtime.checkpoint.scheme import Scheme

__all__ = ["Config", "KvCache", "Quantization", "dialect_of", "read_quantization"]

# By quant_method, without what only chooses a kernel ("awq_marlin").
DIALECTS: dict[str, Callable[[Fields], Reading]] = {
    "compressed-tensors": compressed_tensors.read,
    "modelopt": modelopt.read,
    "fp8": fp8.read,
    "fbgemm_fp8": fp8.read,
    "nvfp4": nvfp4.read,
    "mxfp4": mxfp4.read,
    "awq": awq.read,
    "gptq": gptq.read,
    "auto-round": autoround.read,
    "bitsandbytes": bitsandbytes.read,
}
_SPELLED = {"auto_round": "auto-round", "intel/auto-round": "auto-round", "inc": "auto-round"}
_KERNELS = ("_marlin", "_fp4", "_mixed", "_bitblas")
_FAULTS = 5  # patterns that are named of one config
# Files that hold nothing but a quantisation config: the method, and the object that it is in.
_FILES = {
    "hf_quant_config.json": ("modelopt", "quantization"),
    "quantize_config.json": ("gptq", ""),
    "quant_config.json": ("awq", ""),
}


@dataclass(frozen=True)
class Config:
    """One file's config. where: its place in the file, empty for the whole of it."""

    method: str
    file: Path
    where: str
    reading: Reading
    targets: Targets

    def scheme_of(self, module: str, class_name: str) -> Scheme | None:
        """What it promises of a module; None where it leaves it unquantised."""
        return self.targets.scheme_of(module, class_name)

    def same_as(self, other: "Config") -> bool:
        """Whether both say the same in the same words."""
        return self.reading.promises() == other.reading.promises()


@dataclass(frozen=True)
class Quantization:
    """What all configs of a checkpoint say: the first counts, the others must agree with it."""

    configs: tuple[Config, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def method(self) -> str:
        """The method's name, empty where no config has one."""
        return self.configs[0].method if self.configs else ""

    @property
    def kv_caches(self) -> tuple[KvCache, ...]:
        """The schemes of the KV cache, of each config that has one."""
        return _kv_caches(self.configs)

    def scheme_of(self, module: str, class_name: str) -> Scheme | None:
        """What is promised of a module; None where it is left unquantised.

        module: its name among the tensors; a config may spell it with another wrapper, or name the
        fused layer that it is a part of. class_name: Linear, Experts, Embedding, Norm, ...
        """
        return self.configs[0].scheme_of(module, class_name) if self.configs else None

    def pattern_faults(self) -> tuple[Fault, ...]:
        """The patterns that could not be used: those that take too long show while matching."""
        return tuple(
            Fault(
                "quant-config",
                f"{pattern!r} cannot be used as a pattern: {reason}" if pattern else reason,
                config.file,
                expected="a regular expression",
                found=pattern[:100],
            )
            for config in self.configs
            for pattern, reason in config.targets.faults()[:_FAULTS]
        )


def read_quantization(contents: Contents) -> Quantization:
    """Read the quantisation configs of a checkpoint; what is wrong in them is a fault, no error."""
    configs: list[Config] = []
    faults: list[Fault] = []
    for method, fields in _found(contents, faults):
        dialect = dialect_of(method)
        if dialect not in DIALECTS:
            fields.unknown("quant_method", method, DIALECTS)
            continue
        reading = DIALECTS[dialect](fields)
        targets = Targets(reading.groups, reading.ignore)
        if targets.left_out:
            fields.note(
                f"{fields.where} has {len(reading.groups)} groups of targets, of which the first"
                f" {MOST} are read",
                expected=f"up to {MOST}",
                found=str(len(reading.groups)),
            )
        configs.append(Config(dialect, fields.file, fields.where, reading, targets))
    return Quantization(tuple(configs), (*faults, *_kv_conflict(configs)))


def _found(contents: Contents, faults: list[Fault]) -> Iterator[tuple[str, Fields]]:
    """The configs that are there with their methods, config.json's first."""
    config = Fields(
        contents.path / "config.json", "", contents.configs.get("config.json", {}), faults
    )
    for holder in (config, config.inside("text_config") if config.holds("text_config") else None):
        for key in ("quantization_config", "compression_config"):
            fields = holder.inside(key) if holder else None
            if fields and (method := _method(fields)):
                yield method, fields
                break
    for file, (method, key) in _FILES.items():
        whole = Fields(contents.path / file, "", contents.configs.get(file, {}), faults)
        if held := whole.inside(key) if key else whole if whole.data else None:
            yield method, held


def dialect_of(method: str) -> str:
    """The method that a word for it means, without what only chooses a kernel."""
    name = method.lower().replace("compressed_tensors", "compressed-tensors")
    for kernel in _KERNELS:
        name = name.removesuffix(kernel)
    return _SPELLED.get(name, name)


def _method(fields: Fields) -> str:
    """quant_method; compressed-tensors' and ModelOpt's older configs lack it."""
    if method := fields.text("quant_method"):
        return method
    if "quant_algo" in fields:
        return "modelopt"
    if "config_groups" in fields:
        return "compressed-tensors"
    if not isinstance(fields.data.get("quant_method"), (str, type(None))):
        return ""  # which is noted
    fields.wrong("quant_method", "the name of a method")
    return ""


def _kv_caches(configs: Sequence[Config]) -> tuple[KvCache, ...]:
    return tuple(config.reading.kv_cache for config in configs if config.reading.kv_cache)


def _kv_conflict(configs: Sequence[Config]) -> Iterator[Fault]:
    """Two configs that want the KV cache kept in different types."""
    named = _kv_caches(configs)
    for other in named[1:]:
        if other.dtype != named[0].dtype:
            yield Fault(
                "kv-scheme-conflict",
                f"{other.where} says {other.dtype}, {named[0].where} of {named[0].file.name} says"
                f" {named[0].dtype}",
                other.file,
                expected=named[0].dtype,
                found=other.dtype,
            )
