"""Pickled weights: which names their opcodes import, read and never run.

torch.save writes a zip archive with data.pkl in it, or in its older form several pickles one behind
the other with the tensors' bytes after them. A pickle may import and call anything, so that loading
it runs whatever its author wrote.
"""

import io
import pickletools
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from volta_runtime.checkpoint.faults import Fault, few
from volta_runtime.checkpoint.files import lfs_fault, opened, unread

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_CHECK = "pickle-weights"
_BYTES = 32 << 20  # of opcodes in one file, and of a zip archive's directory; shards have some 1 MB
_OPCODES = 2_000_000  # of one file
_LEGACY_PICKLES = 5  # magic number, protocol, system, the object, the keys of its storages

# What torch.save needs to put tensors together again (torch/_utils.py, torch/storage.py).
_TENSORS = re.compile(
    r"collections\.OrderedDict"
    r"|torch\._utils\._rebuild_\w+"
    r"|torch\._tensor\._rebuild_from_type_v2"
    r"|torch\.nn\.parameter\.Parameter"
    r"|torch\.storage\.(UntypedStorage|TypedStorage)"
    r"|torch\.(\w*Storage|Tensor|Size|device)"
    r"|torch\.(b?float\w*|u?int\w*|complex\w*|bool|half|double|long|short)"
)
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_TEXTS |= {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}


def pickle_faults(directory: Path, names: Collection[str], used: bool) -> Iterator[Fault]:
    """What is to be said of pickled weights; used: whether there are no others."""
    listed = sorted(names)
    if not used:
        if listed:
            words = f"pickled weights lie beside the others and are not used: {few(listed)}"
            yield Fault(_CHECK, words, directory, found=few(listed), level="info")
        return
    for name in listed:
        yield _judged(directory / name)


def _judged(file: Path) -> Fault:
    """What is to be said of one file that is used."""
    found: set[str] = set()
    problem = ""
    try:
        with opened(file) as (stream, size):
            start = stream.read(1024)
            stream.seek(0)
            if pointer := lfs_fault(file, start, size):
                return pointer
            for name in imports(stream):
                if not _TENSORS.fullmatch(name):
                    found.add(name)
    except OSError as error:
        return unread(_CHECK, file, error)
    except (ValueError, RecursionError) as error:
        problem = f"its opcodes cannot be read to their end ({error})"
    if found:
        words = f"loading it runs code: it imports {few(found)}"
        return Fault(_CHECK, words, file, "", "tensors alone", few(found))
    if problem:
        return Fault(_CHECK, problem, file, expected="what torch.save writes")
    words = "a pickle: it imports what tensors need alone, and no engine here loads it"
    return Fault(_CHECK, words, file, "", "safetensors", "pickle", level="warn")


def imports(stream: BinaryIO) -> Iterator[str]:
    """The names that a file of torch.save imports, as module.name, in the file's order.

    Raises ValueError where it is no such file, or does not end within the bounds of this module.
    """
    if stream.read(4) != b"PK\x03\x04":
        stream.seek(0)
        pickles = io.BytesIO(stream.read(_BYTES))
        for _ in range(_LEGACY_PICKLES):
            yield from _globals(pickles)
        return
    try:
        with zipfile.ZipFile(_Bounded(stream)) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    with archive.open(name) as member:
                        yield from _globals(io.BytesIO(_whole(member)))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"a damaged zip archive: {error}") from error


def _whole(member: Any) -> bytes:
    data: bytes = member.read(_BYTES + 1)
    if len(data) > _BYTES:
        raise ValueError(f"more than {_BYTES:,} bytes of opcodes")
    return data


class _Bounded:
    """A stream of which no more is read at once than a sound archive's directory takes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, count: int = -1) -> bytes:
        data = self._stream.read(_BYTES + 1 if count < 0 else min(count, _BYTES + 1))
        if len(data) > _BYTES:
            raise ValueError(f"its directory takes more than {_BYTES:,} bytes")
        return data


def _globals(stream: BinaryIO) -> Iterator[str]:
    """The imports of one pickle.

    STACK_GLOBAL takes module and name from the stack: texts that were pushed right before it, new
    or from the memo. Where anything else precedes it, what it imports is hidden on purpose.
    """
    memo: dict[Any, str | None] = {}
    pushed: list[str | None] = [None, None]  # by the last two opcodes that are not of the memo
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number > _OPCODES:
            raise ValueError(f"more than {_OPCODES:,} opcodes")
        name = opcode.name
        if name in _PUTS:
            memo[len(memo) if argument is None else argument] = pushed[1]
        elif name in _TEXTS:
            pushed = [pushed[1], argument if isinstance(argument, str) else None]
        elif name in _GETS:
            pushed = [pushed[1], memo.get(argument)]
        elif name not in ("FRAME", "PROTO"):
            if name in ("GLOBAL", "INST"):
                yield str(argument).replace(" ", ".")
            elif name == "STACK_GLOBAL":
                yield "a hidden name" if None in pushed else f"{pushed[0]}.{pushed[1]}"
            elif name.startswith("EXT"):
                yield f"copyreg extension {argument}"
            pushed = [pushed[1], None]
