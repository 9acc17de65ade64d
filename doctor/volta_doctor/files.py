"""Files that appear whole or not at all."""

import os
import stat
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Write to a temporary name beside the file, then rename. Raises OSError.

    An existing file keeps its mode and owner, a link stays one, and a device or pipe is written to.
    """
    target = Path(os.path.realpath(path))
    old = target.stat() if target.exists() else None
    if old and not stat.S_ISREG(old.st_mode):
        target.write_bytes(data)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
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
