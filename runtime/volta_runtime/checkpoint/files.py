"""Files of a checkpoint, opened so that nothing in a directory can hold the reader up."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from volta_runtime.checkpoint.faults import Fault, Level

LFS_MAGIC = b"version https://git-lfs.github.com/spec/v1"
LFS_BYTES = 1024  # a pointer is shorter (git-lfs docs/spec.md)
CONFIG_BYTES = 16 << 20  # the longest known is 2 MB: a config that lists 60,000 modules
# Of one JSON text: Python takes up to 200 bytes for each, however short it is written. An index of
# 384 experts in 60 layers, of three projections with four tensors each, has 276,480.
VALUES = 500_000

# What a file that should hold weights begins with where it is something else.
_OTHERS = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02", "a pickle"),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"<!DOCTYPE", "a web page"),
    (b"<!doctype", "a web page"),
    (b"<html", "a web page"),
    (b"<?xml", "an XML text, as stores answer with an error"),
    (b"\0" * 16, "zeros, as of a download that was made room for and not filled"),
)


def too_many(raw: bytes, most: int = VALUES) -> str:
    """Why a JSON text is not worth decoding: it has more values than any that is meant; or empty.

    Each value follows a comma or an opening bracket; such in texts count too.
    """
    count = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    return f"{count:,} values, where there can be up to {most:,}" if count > most else ""


@contextmanager
def opened(file: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file as a stream, and its size in bytes.

    Raises OSError, whose strerror says why: for a pipe, a device or a directory too, before it is
    opened, for that may wait or have effects.
    """
    if not S_ISREG(file.stat().st_mode):
        raise OSError(0, "it is not a file")
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not S_ISREG(status.st_mode):
            raise OSError(0, "it is not a file")
        yield stream, status.st_size


def unread(check: str, file: Path, error: OSError) -> Fault:
    """The fault of a file that cannot be read: whose reader lacks the rights may be sound."""
    level: Level = "unknown" if isinstance(error, PermissionError) else "fail"
    return Fault(check, f"cannot be read: {error.strerror or error}", file, level=level)


def looks_like(start: bytes) -> str:
    """What a file that is not what its name says seems to be, by its first bytes; or empty."""
    return next((words for magic, words in _OTHERS if start.startswith(magic)), "")


def lfs_fault(file: Path, start: bytes, size: int) -> Fault | None:
    """The fault of a file that is a Git LFS pointer, by its first bytes."""
    if size > LFS_BYTES or not start.startswith(LFS_MAGIC):
        return None
    told = re.search(rb"^size (\d{1,20})$", start, re.MULTILINE)
    meant = f" to a file of {int(told[1]):,} bytes" if told else ""
    return Fault(
        "lfs-pointer",
        f"the file is a Git LFS pointer of {size} bytes{meant}, not what it stands for",
        file,
        expected=f"{int(told[1]):,} bytes" if told else "the file itself",
        found=f"a pointer of {size} bytes",
    )


def read_json(file: Path, check: str) -> tuple[dict[str, Any] | None, Fault | None]:
    """A JSON object, or the fault of this check's why there is none."""

    def fault(message: str, expected: str = "a JSON object", found: str = "") -> Fault:
        return Fault(check, message, file, expected=expected, found=found)

    try:
        with opened(file) as (stream, size):
            if size > CONFIG_BYTES:
                limit = f"up to {CONFIG_BYTES:,} bytes"
                return None, fault("too large for what it should hold", limit, f"{size:,} bytes")
            raw = stream.read(CONFIG_BYTES)
    except OSError as error:
        return None, unread(check, file, error)
    if pointer := lfs_fault(file, raw[:LFS_BYTES], size):
        return None, pointer
    if words := too_many(raw):
        return None, fault(words)
    try:
        # Not msgspec: configs hold Infinity and NaN, which json writes and JSON lacks.
        value = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        return None, fault(f"not sound JSON: {error}", found=looks_like(raw) or "damaged text")
    if not isinstance(value, dict):
        return None, fault("not a JSON object", found=type(value).__name__)
    return value, None
