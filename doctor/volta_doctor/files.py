"""Files of the user: read within reason, written whole or not at all."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_LARGEST = 64 << 20  # bytes; a snapshot of sixteen GPUs has less than one of these


def read(path: Path | str) -> bytes:
    """Return a file's content. Raises OSError, also where it is larger than any of ours can be."""
    with Path(path).open("rb") as file:
        return within(file)


def within(file: BinaryIO) -> bytes:
    """Return what a file still holds; a device may hold more than memory. Raises OSError."""
    data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise OSError(errno.EFBIG, f"larger than {_LARGEST >> 20} MiB")
    return data


def write(path: Path, data: bytes) -> None:
    """Write to a temporary name beside the file, then rename. Raises OSError.

    An existing file keeps its mode and owner, a link stays one, and a device or pipe is written to.
    """
    old = None
    if path.is_symlink() or path.exists():
        # Opened by its own name: the kernel refuses a link that another has put into /tmp.
        with os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
            old = os.fstat(file.fileno())
            if not stat.S_ISREG(old.st_mode):
                file.write(data)
                return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as file:
            file.write(data)
            if old:
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
