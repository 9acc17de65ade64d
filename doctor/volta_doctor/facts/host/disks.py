"""What the host section says of file systems: those that hold models and caches."""

import re
from pathlib import PurePosixPath

import msgspec

from volta_doctor.facts.serve import Server
from volta_doctor.probe import CannotLook, Probe

# Variables by which a server is told where to keep its caches.
_CACHE_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "XDG_CACHE_HOME",
    "VLLM_CACHE_ROOT",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)


class FileSystem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file system by its mount point, and what of the servers' lies on it.

    `free_bytes` is what any user may take. `models` and `caches` are the directories there.
    """

    mount: str
    total_bytes: int
    free_bytes: int
    read_only: bool = False
    models: list[str] = []
    caches: list[str] = []


def parse_mounts(mountinfo: str) -> list[str]:
    """Return the mount points of /proc/self/mountinfo."""
    points = (line.split()[4] for line in mountinfo.splitlines() if len(line.split()) > 5)
    return [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point) for point in points]


def mount_of(probe: Probe, path: str) -> str:
    """Return the mount point under which a path without links lies.

    A server in a container has its own: these begin with /proc/PID/root, as the path does.
    """
    inside = re.match(r"(/proc/\d+)(/root)(/.*)", path)
    root, path = (inside[1] + inside[2], inside[3]) if inside else ("", path)
    try:
        mounts = parse_mounts(probe.text(f"{inside[1] if inside else '/proc/self'}/mountinfo"))
    except CannotLook:  # another user's process
        mounts = []
    above = {str(parent) for parent in (PurePosixPath(path), *PurePosixPath(path).parents)}
    return root + max(above.intersection(mounts), key=len, default="/")


def caches_of(server: Server) -> list[str]:
    """Return the directories in which a server caches models, kernels and graphs."""
    named = [server.env[name] for name in _CACHE_VARIABLES if server.env and name in server.env]
    return [*([f"{server.home}/.cache"] if server.home else []), *named]


def collect(probe: Probe, servers: list[Server]) -> tuple[list[FileSystem], str]:
    """Return the file systems of the servers' directories by mount point, and what is missing."""
    found: dict[str, FileSystem] = {}
    problem = ""
    for server in servers:
        models = [server.model_dir] if server.model_dir else []
        for path in dict.fromkeys((*models, *caches_of(server))):
            try:
                disk = probe.disk(_existing(probe, path))
            except CannotLook as reason:
                problem = problem or f"the file system of {path} is hidden: {reason}"
                continue
            mount = mount_of(probe, disk.path)
            system = found.setdefault(
                mount,
                FileSystem(
                    mount=mount,
                    total_bytes=disk.total,
                    free_bytes=disk.free,
                    read_only=disk.read_only,
                ),
            )
            kind = system.models if path in models else system.caches
            if path not in kind:
                kind.append(path)
    return [found[mount] for mount in sorted(found)], problem


def _existing(probe: Probe, path: str) -> str:
    """Return the path, or the nearest directory above it that is there already.

    Of one that this user may not enter it is the mount point above it: it lies on that file system.
    """
    here = PurePosixPath(path)
    try:
        while not probe.exists(str(here)) and here != here.parent:
            here = here.parent
    except CannotLook:
        return mount_of(probe, path)
    return str(here)
