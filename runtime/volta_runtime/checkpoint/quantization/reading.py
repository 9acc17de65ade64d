"""What one config says, in the terms that all dialects share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.targets import Entry, part
from volta_runtime.checkpoint.scheme import Scheme

# The classes that a method without targets of its own means.
ALL = (Entry("class", "Linear"), Entry("class", "Experts"))


@dataclass(frozen=True)
class KvCache:
    """How a config wants keys and values kept: "fp8", "nvfp4", "int8", and where it says so."""

    dtype: str
    file: Path
    where: str


@dataclass(frozen=True)
class Reading:
    """The groups of targets with their schemes, what is left out, and the KV cache's scheme."""

    groups: Sequence[tuple[Sequence[Entry], Scheme | None]] = ()
    ignore: Sequence[Entry] = ()
    kv_cache: KvCache | None = None

    def promises(self) -> tuple[object, ...]:
        """What it says of modules, wherever it says so."""
        groups = [
            (frozenset(entries), scheme and (scheme.format, scheme.group, scheme.bits))
            for entries, scheme in self.groups
        ]
        return groups, frozenset(self.ignore)


def blanket(fields: Fields, scheme: Scheme, *, skip: Sequence[str] = ()) -> Reading:
    """The reading of a method that quantises all there is but the modules it lists."""
    names = skip or fields.strings("modules_to_not_convert")
    return Reading([(ALL, scheme)], [part(name) for name in names])


def kv_cache(fields: Fields) -> KvCache | None:
    """kv_cache_scheme (compressed-tensors, ModelOpt in config.json) or kv_cache_quant_algo."""
    if algo := fields.text("kv_cache_quant_algo"):
        where = fields.place("kv_cache_quant_algo")
        return KvCache(algo.lower(), fields.file, where)
    scheme = fields.inside("kv_cache_scheme")
    if scheme is None:
        return None
    kind, bits = scheme.text("type"), scheme.number("num_bits")
    if ("type" in scheme and not kind) or ("num_bits" in scheme and bits is None):
        return None  # which is noted
    kind, bits = kind or "float", bits or 8
    name = {("float", 8): "fp8", ("float", 4): "nvfp4", ("int", 8): "int8"}
    return KvCache(name.get((kind, bits), f"{kind}{bits}"), fields.file, scheme.where)
