"""What lies in a cache: the directories that were compiled into, and what they tell."""

import json
import os
import re
from collections.abc import Iterator
from stat import S_ISDIR
from typing import NamedTuple

import msgspec

from volta_doctor.facts import proc
from volta_doctor.facts.ext_cache.kinds import Kind
from volta_doctor.probe import CannotLook, Probe

# What `volta-doctor set-aside` appends: the directory's inode.
ASIDE = re.compile(r"[\w.+-]+\.stale-\d+", re.ASCII)
# Names that tools give. Others are nobody's extension: they are neither read nor ever moved.
_NAME = re.compile(r"[\w.+-]+", re.ASCII)
_MOST = 2048  # entries of one cache that are looked into
_METADATA_BYTES = 1 << 16


class Extension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One extension's build directory; times are in seconds since the epoch, None where none is.

    `built` is when its newest library was made; `begun` says that ninja has run there and made
    none. `locked` is when its lock was made, `lock_inode` identifies that file, and `holder` is a
    process that has it open, as the one does that made it; without one, `all_seen` says that no
    process could hide it. `version` and `arch` (9.0) are what its name tells. `owner` is told
    where it is not the cache's. `inode` identifies it, None for a link.
    """

    name: str
    built: int | None = None
    begun: bool = False
    locked: int | None = None
    lock_inode: int | None = None
    holder: int | None = None
    all_seen: bool = False
    version: str | None = None
    arch: str | None = None
    owner: str | None = None
    inode: int | None = None


class Found(NamedTuple):
    """What a cache holds, as Cache has it."""

    extensions: list[Extension]
    entries: int
    newest: int | None
    kernels: dict[str, int]
    aside: list[str]


def groups(probe: Probe, root: str, pattern: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the directories below a root that fit a pattern by levels, and what they tell."""
    found: list[tuple[str, dict[str, str]]] = [(root, {})]
    for level in pattern.split("/") if pattern else []:
        found = [
            (f"{path}/{name}", told | match.groupdict())
            for path, told in found
            for name in probe.names(path)
            if (match := re.fullmatch(level, name))
        ]
    yield from found


def set_aside_in(probe: Probe, directory: str) -> list[str]:
    """Return the names of what was set aside in a directory."""
    return [name for name in probe.names(directory) if ASIDE.fullmatch(name)]


def inode(probe: Probe, path: str, status: os.stat_result) -> int | None:
    """Return the inode of a file or directory, None where a link leads to it."""
    return status.st_ino if probe.link(path) is None else None


def read(probe: Probe, directory: str, kind: Kind, owners: dict[int, str]) -> Found:
    """Read a cache's entries. Raises CannotLook."""
    aside = set_aside_in(probe, directory)
    names = [name for name in probe.names(directory) if _NAME.fullmatch(name)]
    names = [name for name in names if name not in aside]
    top = probe.stat(directory)
    found: list[Extension] = []
    newest: int | None = None
    kernels: dict[str, int] = {}
    count = 0
    for name in names:
        path = f"{directory}/{name}"
        status = probe.stat(path)
        if status is None or not S_ISDIR(status.st_mode):
            continue
        count += 1
        if count > _MOST:
            continue
        owner = None
        if top and status.st_uid != top.st_uid and owners:
            owner = owners.get(status.st_uid, str(status.st_uid))
        if kind.ninja:
            extension = _extension(probe, path, kind)
            if extension is None:
                continue
            told = re.fullmatch(kind.entry, name) if kind.entry else None
            found.append(
                msgspec.structs.replace(
                    extension,
                    name=name,
                    version=told["version"] if told else None,
                    arch=told["archs"] if told else None,
                    owner=owner,
                    inode=inode(probe, path, status),
                )
            )
            continue
        newest = max(newest or 0, int(status.st_mtime))
        if owner:
            found.append(Extension(name=name, owner=owner, inode=inode(probe, path, status)))
        if kind.name == "triton" and (made_for := _kernel(probe, path)):
            kernels[made_for] = kernels.get(made_for, 0) + 1
    return Found(found, 0 if kind.ninja else count, newest, kernels, aside)


def _extension(probe: Probe, path: str, kind: Kind) -> Extension | None:
    """Return what a build left there; a directory with neither its plan nor its lock is none."""
    files = [name for name in probe.names(path) if not ASIDE.fullmatch(name)]
    if "build.ninja" not in files and kind.lock not in files:
        return None
    times = [probe.stat(f"{path}/{file}") for file in files if file.endswith(".so")]
    built = max((int(time.st_mtime) for time in times if time), default=None)
    lock = probe.stat(f"{path}/{kind.lock}") if kind.lock in files else None
    holder, all_seen = _holder(probe, f"{path}/{kind.lock}", lock) if lock else (None, False)
    return Extension(
        name="",
        built=built,
        begun=built is None and {"build.ninja", ".ninja_log"} <= set(files),
        locked=int(lock.st_mtime) if lock else None,
        lock_inode=inode(probe, f"{path}/{kind.lock}", lock) if lock else None,
        holder=holder,
        all_seen=all_seen,
    )


class _OpenLocks(NamedTuple):
    """Processes by the locks that they have open; `all_seen` says that none could hide one."""

    by_path: dict[str, int]
    by_identity: dict[tuple[int, int], int]
    all_seen: bool


def _open_locks(probe: Probe) -> _OpenLocks:
    processes = probe.once(proc.table)
    found = _OpenLocks({}, {}, bool(processes))
    for pid in processes:
        try:
            for name in probe.names(f"/proc/{pid}/fd"):
                path = probe.link(f"/proc/{pid}/fd/{name}") or ""
                if path.endswith("/lock"):
                    found.by_path[path] = pid
                    if status := probe.stat(f"/proc/{pid}/fd/{name}"):
                        found.by_identity[status.st_dev, status.st_ino] = pid
        except CannotLook:
            found = found._replace(all_seen=False)
    return found


def _holder(probe: Probe, path: str, lock: os.stat_result) -> tuple[int | None, bool]:
    """Return a process that has a lock open, and whether none could hide it."""
    found = probe.once(_open_locks)
    # In a container it has another path.
    pid = found.by_path.get(path) or found.by_identity.get((lock.st_dev, lock.st_ino))
    return pid, found.all_seen


def _kernel(probe: Probe, path: str) -> str | None:
    """Return what Triton's metadata say a kernel was made by and for: 3.5.0 sm_70."""
    for name in probe.names(path):
        if name.endswith(".json") and not name.startswith("__grp__"):
            try:
                with probe.open(f"{path}/{name}") as file:
                    told = json.loads(file.read(_METADATA_BYTES))
                return f"{told['triton_version']} sm_{int(told['target']['arch'])}"
            except (CannotLook, ValueError, KeyError, TypeError, RecursionError):
                continue  # of another backend or version, or half written
    return None
