"""Files that appear whole or not at all."""

import os
import stat
from pathlib import Path


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
