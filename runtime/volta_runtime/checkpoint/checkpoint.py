"""A checkpoint as a map from module to weight format, read from headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.architecture import Architecture, read_architecture
from volta_runtime.checkpoint.architecture.fields import field_faults
from volta_runtime.checkpoint.contents import CONFIG, Contents, Kind, read_contents
from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.modules import module_map
from volta_runtime.checkpoint.quantization import Quantization, read_quantization
from volta_runtime.checkpoint.sums import Progress, check_sums
from volta_runtime.checkpoint.tensors import TensorInfo
from volta_runtime.checkpoint.tokenizer import Tokenizer, read_tokenizer

_INSTEAD: Mapping[Kind, str] = {
    "gguf": "its weights are in GGUF; `volta-serve convert` makes a checkpoint of such a file",
    "pickle": "its weights are pickled, which runs code of whoever made them",
    "index": "its shards are missing",
    "none": "there are no weights in it",
}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the headers and configs of a checkpoint tell; one is equal to itself alone.

    path: the directory, or the GGUF file. config: config.json, empty where there is none. modules:
    by name. faults: all that is wrong, the files' own first. tokenizer: what a prompt becomes.
    """

    path: Path
    contents: Contents
    config: Mapping[str, Any]
    quantization: Quantization
    modules: Mapping[str, Module]
    architecture: Architecture
    faults: tuple[Fault, ...]
    tokenizer: Tokenizer = field(default_factory=Tokenizer)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by full name."""
        return self.contents.tensors


def inspect(path: Path) -> Checkpoint:
    """Read a checkpoint with all its faults.

    Raises CheckpointError for a path that does not exist or may not be looked at, and nothing else.
    """
    contents = read_contents(path)
    quantization = read_quantization(contents)
    architecture = read_architecture(contents)
    modules, faults = module_map(contents, quantization, architecture)
    tokenizer, tokenizer_faults = read_tokenizer(contents, architecture)
    config = contents.configs.get(CONFIG, {})
    fields = field_faults(config, contents.path / CONFIG)
    return Checkpoint(
        path,
        contents,
        config,
        quantization,
        modules,
        architecture,
        (*contents.faults, *fields, *quantization.faults, *faults, *tokenizer_faults),
        tokenizer,
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint that is to be served.

    Raises CheckpointError naming the first fault that forbids it: the file, tensor or module that
    is missing, damaged or contradictory.
    """
    checkpoint = inspect(path)
    faults = [fault for fault in checkpoint.faults if fault.level in ("fail", "unknown")]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise CheckpointError(
            f"{faults[0]}{more}; `volta-doctor model {path}` tells all that is wrong with the"
            " checkpoint, and what to do"
        )
    if checkpoint.contents.kind != "safetensors":
        raise CheckpointError(
            f"{path}: {_INSTEAD[checkpoint.contents.kind]}, and volta-serve serves safetensors"
        )
    return checkpoint


def verify(directory: Path, progress: Progress | None = None) -> None:
    """Check every file against SHA256SUMS, then the headers against the config.

    progress gets (file name, bytes done, bytes in all). Raises CheckpointError naming the first
    bad file.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory")
    check_sums(directory, progress)
    open_checkpoint(directory)
