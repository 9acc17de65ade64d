"""An output directory that appears whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from volta_runtime.convert.errors import ConvertError


@contextmanager
def atomic_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `out` that becomes `out` when the block succeeds.

    Its name is fixed, so what a killed run left is cleared by the next one; a lock on it keeps
    two runs apart. Raises ConvertError when another run holds it.
    """
    partial = out.parent / f".{out.name}.partial"
    out.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir(exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConvertError(f"{out}: another conversion is writing it; wait for it") from None
        for left in partial.iterdir():
            left.unlink()
        try:
            yield partial
            for file in partial.iterdir():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())  # else a power cut may keep the name, not the bytes
            partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(lock)
