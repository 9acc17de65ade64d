"""Lists the files that a running process has mapped, from /proc/PID/maps (proc(5))."""

import os
import re
from typing import NamedTuple

from volta_doctor.probe import NotHere, Probe

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ (\d+) +(/.*)$", re.M)
_DELETED = " (deleted)"
# Shared memory and devices hold no code; what the driver maps of itself are devices.
_NOT_CODE = ("/dev/", "/memfd:", "/SYSV", "/anon_hugepage", "/run/", "/proc/", "/sys/")


def is_pid(text: str) -> bool:
    """Say whether a text may be the id of a process."""
    return re.fullmatch(r"[0-9]{1,10}", text) is not None


class Mapped(NamedTuple):
    """The files by the paths that the process knows them by, each once."""

    files: list[str]
    deleted: list[str]


def mapped(probe: Probe, pid: int) -> Mapped:
    """Return what a process has mapped. Raises CannotLook, NotHere where there is no such one."""
    if not probe.exists(f"/proc/{pid}"):
        raise NotHere(f"{pid}: there is no such process, and no such file here")
    text = os.fsdecode(probe.data(f"/proc/{pid}/maps"))
    paths = dict.fromkeys(path for inode, path in _MAPPING.findall(text) if int(inode))
    names = [path.replace("\\012", "\n") for path in paths if not path.startswith(_NOT_CODE)]
    deleted = [name.removesuffix(_DELETED) for name in names if name.endswith(_DELETED)]
    return Mapped([name for name in names if not name.endswith(_DELETED)], deleted)
