"""GGUF to an NVFP4 (weights only) checkpoint in the compressed-tensors layout."""

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from volta_runtime.checkpoint import verify as verify_checkpoint
from volta_runtime.checkpoint.contents import CONFIG
from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.index import WEIGHTS
from volta_runtime.checkpoint.sums import Progress, sha256, write_sums
from volta_runtime.checkpoint.writer import SafetensorsWriter
from volta_runtime.convert.architectures import Architecture, Rule, architecture_of
from volta_runtime.convert.errors import ConvertError
from volta_runtime.convert.output import atomic_directory
from volta_runtime.convert.source import GGUFSource
from volta_runtime.convert.tokenizer import write_tokenizer
from volta_runtime.quant import nvfp4

RECORD = "volta_convert.json"

# Names how weights and tokenizer are made; change it whenever the output's bytes would change.
RECIPE = "nvfp4a16-nearest"

_QUANTIZATION: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "format": "nvfp4-pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": nvfp4.GROUP,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "tensor_group",
                "symmetric": True,
                "type": "float",
            },
        }
    },
    "format": "nvfp4-pack-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}


def convert_gguf(src: Path, out: Path, progress: Progress | None = None) -> None:
    """Convert a GGUF file to a checkpoint directory: linear layers NVFP4, the rest FP16.

    The directory appears whole or not at all, and the same source gives the same bytes. When
    `out` already holds a sound conversion of the same source, nothing is done. progress gets
    (tensor name, tensors done, tensors in all). Raises ConvertError.
    """
    source = GGUFSource(src)
    record = {"schema": 1, "recipe": RECIPE, "source": {"name": src.name, "sha256": sha256(src)}}
    if out.exists() or out.is_symlink():
        _accept_existing(out, record)
        return
    architecture = architecture_of(source)
    try:
        with atomic_directory(out) as partial:
            _write_weights(source, architecture, partial / WEIGHTS, progress)
            ids = write_tokenizer(source, partial)
            _write_json(partial / "generation_config.json", ids)
            config = architecture.config(source) | ids | {"torch_dtype": "float16"}
            _write_json(partial / CONFIG, config | {"quantization_config": _QUANTIZATION})
            _write_json(partial / RECORD, record)
            write_sums(partial)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ConvertError(
                f"{out}: no room to write it ({error.strerror}); it takes about as much as"
                f" {src.name} ({src.stat().st_size / 1e6:.0f} MB) and half again: free some space"
            ) from error
        raise ConvertError(f"{out}: cannot write: {error}") from error


def _accept_existing(out: Path, record: dict[str, Any]) -> None:
    try:
        verify_checkpoint(out)
        found = json.loads((out / RECORD).read_text(encoding="utf-8"))
        made_from = (found["recipe"], found["source"]["sha256"])
    except (CheckpointError, OSError, ValueError, KeyError, TypeError) as error:
        raise ConvertError(
            f"{out}: exists and is not a complete conversion ({error}); remove it or choose"
            " another directory"
        ) from error
    if made_from != (record["recipe"], record["source"]["sha256"]):
        raise ConvertError(
            f"{out}: exists and was converted from another source or by another recipe"
            f" ({found}); remove it or choose another directory"
        )


@dataclass(frozen=True)
class _Weight:
    """One GGUF tensor on its way: where it goes and which rows llama.cpp interleaved."""

    gguf: str
    module: str
    linear: bool
    shape: tuple[int, ...]
    rope_heads: int | None

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The checkpoint's tensors: name to (dtype, shape)."""
        if not self.linear:
            return {f"{self.module}.weight": ("F16", self.shape)}
        n, k = self.shape
        return {
            f"{self.module}.weight_packed": ("U8", (n, k // 2)),
            f"{self.module}.weight_scale": ("F8_E4M3", (n, k // nvfp4.GROUP)),
            f"{self.module}.weight_global_scale": ("F32", (1,)),
        }

    def encode(self, values: npt.NDArray[np.float32]) -> Iterator[tuple[str, memoryview]]:
        """The tensors' bytes. Raises ValueError for a weight that has no finite encoding."""
        if self.rope_heads:
            values = _deinterleave(values, self.rope_heads)
        if not self.linear:
            with np.errstate(over="ignore"):
                half = values.astype("<f2")
            if not np.isfinite(half).all():
                raise ValueError(f"amax {np.abs(values).max()} does not fit FP16's 65504")
            yield f"{self.module}.weight", half.data
            return
        array = nvfp4.quantize(values)
        yield f"{self.module}.weight_packed", array.packed.data
        yield f"{self.module}.weight_scale", array.scale.data
        yield f"{self.module}.weight_global_scale", np.array([array.global_scale], "<f4").data


def _deinterleave(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows back to Hugging Face's order: within a head, the two halves that rope rotates.

    llama.cpp's converter put row i of the first half beside row i of the second.
    """
    n, k = weight.shape
    pairs = weight.reshape(heads, n // heads // 2, 2, k)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(n, k)


def _write_weights(
    source: GGUFSource, architecture: Architecture, file: Path, progress: Progress | None
) -> None:
    weights = list(_plan(source, architecture))
    layout = {name: spec for weight in weights for name, spec in weight.layout().items()}
    with SafetensorsWriter(file, layout) as writer:
        for done, weight in enumerate(weights, 1):
            try:
                for name, data in weight.encode(source.tensor(weight.gguf)):
                    writer.write(name, data)
            except ValueError as error:
                raise ConvertError(
                    f"{source.path}: tensor {weight.gguf} cannot be converted: {error}"
                ) from error
            if progress:
                progress(weight.gguf, done, len(weights))


def _plan(source: GGUFSource, architecture: Architecture) -> Iterator[_Weight]:
    """Every tensor of the source matched to its rule; a missing or an unknown one is refused."""
    layers = source.require(f"{architecture.name}.block_count")
    left = set(source.shapes)
    for rule in architecture.rules:
        for layer in range(layers if "{}" in rule.gguf else 1):
            name = rule.gguf.format(layer) + ".weight"
            if name in left:
                left.remove(name)
                yield _weight(source, architecture, rule, name, layer)
            elif not rule.optional:
                raise ConvertError(
                    f"{source.path}: tensor {name} is missing; download the file again"
                )
    if left:
        raise ConvertError(
            f"{source.path}: tensor {min(left)} has no place in architecture"
            f" {architecture.name!r} as this version knows it"
        )


def _weight(
    source: GGUFSource, architecture: Architecture, rule: Rule, name: str, layer: int
) -> _Weight:
    shape = source.shapes[name]
    if rule.linear and (len(shape) != 2 or shape[1] % nvfp4.GROUP):
        raise ConvertError(
            f"{source.path}: tensor {name} has shape {list(shape)}; NVFP4 needs [N, K] with K a"
            f" multiple of {nvfp4.GROUP}"
        )
    heads = source.require(f"{architecture.name}.{rule.rope_heads}") if rule.rope_heads else None
    if heads and shape[0] % (2 * heads):
        raise ConvertError(
            f"{source.path}: tensor {name} has {shape[0]} rows, not an even number for each of"
            f" {heads} heads"
        )
    return _Weight(name, rule.module.format(layer), rule.linear, shape, heads)


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
