"""Sets a part of a cache aside by renaming it, having looked again at what it is.

Between the plan and the act others may change the tree, and where root acts in a user's directory
that user may mean ill. So nothing is followed that such a user could have laid: directories are
opened one by one, links only where root or this user owns them, and none below the cache. What is
renamed stays in its directory: nothing is deleted, nothing leaves the cache.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_MOST_LINKS = 40  # as many as Linux follows before ELOOP
_MOST_FILES = 100_000
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


class Refused(Exception):  # noqa: N818 - it is an answer, not an accident
    """Why something was not set aside, in words for the user."""


def aside_name(name: str, inode: int) -> str:
    """Return what it is called when it is set aside; no two can have one name."""
    return f"{name}.stale-{inode}"


def set_aside(path: str, within: str, inode: int) -> str:
    """Rename a file or directory of the cache `within`, and return its new path.

    Raises Refused where it is another than that with this inode, is not below the cache, or a
    process uses it; OSError where the system does not allow it.
    """
    with _opened(path, within) as (parent, name):
        _same(parent, name, inode, path)
        if users := _users(parent, name):
            raise Refused(f"{path} is in use by {', '.join(users)}: stop that first")
        return _rename(parent, name, aside_name(name, inode), inode, path)


def put_back(path: str, within: str, inode: int) -> str:
    """Take set_aside back; refused where something new has the old name. Raises as it does."""
    with _opened(path, within) as (parent, name):
        _same(parent, aside_name(name, inode), inode, path)
        return _rename(parent, aside_name(name, inode), name, inode, path)


@contextmanager
def _opened(path: str, within: str) -> Iterator[tuple[int, str]]:
    """Open the directory that holds `path`, and yield it with the name in it."""
    below = path.removeprefix(f"{within}/")
    parts = below.split("/")
    if below == path or not within.startswith("/") or {"", ".", ".."} & {*parts}:
        raise Refused(f"{path} is not below the cache {within}")
    with ExitStack() as stack:
        directory = _open_cache(within, stack)
        device = os.fstat(directory).st_dev
        for part in parts[:-1]:
            directory = _keep(os.open(part, _DIRECTORY, dir_fd=directory), stack)
            if os.fstat(directory).st_dev != device:
                raise Refused(f"{path} is on another file system than the cache {within}")
        yield directory, parts[-1]


def _open_cache(path: str, stack: ExitStack) -> int:
    """Open a directory step by step, through no link of another user."""
    trusted = {0, os.geteuid()}
    here = _keep(os.open("/", _DIRECTORY), stack)
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        found = _keep(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=here), stack)
        status = os.fstat(found)
        if not stat.S_ISLNK(status.st_mode):
            here = found
            continue
        if status.st_uid not in trusted:
            raise Refused(f"{path} leads through {name}, a link of user {status.st_uid}")
        links += 1
        target = os.readlink("", dir_fd=found)
        # What a link below /proc reads as is not where it leads.
        if links > _MOST_LINKS or _path(found).startswith("/proc/"):
            raise Refused(f"{path} leads through {name}, a link that is not followed")
        todo += target.split("/")[::-1]
        if target.startswith("/"):
            here = _keep(os.open("/", _DIRECTORY), stack)
    return here


def _path(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _keep(descriptor: int, stack: ExitStack) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _same(parent: int, name: str, inode: int, path: str) -> None:
    """Refuse what is not the very thing that the plan saw."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        raise Refused(f"{path} is not there any more") from None
    if status.st_ino != inode or status.st_dev != os.fstat(parent).st_dev:
        raise Refused(f"{path} is another than it was (inode {status.st_ino}, then {inode})")
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise Refused(f"{path} is neither a directory nor a file")


def _rename(parent: int, old: str, new: str, inode: int, path: str) -> str:
    try:
        os.stat(new, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        raise Refused(f"{path}: there is a {new} already")
    os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)
    # Another may have come in its place since it was looked at; it goes back.
    if os.stat(new, dir_fd=parent, follow_symlinks=False).st_ino != inode:
        os.rename(new, old, src_dir_fd=parent, dst_dir_fd=parent)
        raise Refused(f"{path} was exchanged in this very moment")
    return f"{path.rpartition('/')[0]}/{new}"


def _users(parent: int, name: str) -> list[str]:
    """Name the processes that have a file of it mapped or open, or work in it.

    Of other users' processes only root sees the files.
    """
    inside = _files(parent, name)
    real = f"{_path(parent)}/{name}"
    own = str(os.getpid())
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != own and _uses(process, inside, real):
            title = (process / "comm").read_text(errors="replace").strip()
            found.append(f"{title} (pid {process.name})")
    return found


def _files(parent: int, name: str) -> set[tuple[int, int]]:
    """Return device and inode of all that is in it, itself included."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    found = {(status.st_dev, status.st_ino)}
    if not stat.S_ISDIR(status.st_mode):
        return found
    for _, below, files, directory in os.fwalk(name, dir_fd=parent):
        for entry in (*below, *files):
            try:
                status = os.stat(entry, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue  # it has just gone
            found.add((status.st_dev, status.st_ino))
        if len(found) > _MOST_FILES:
            raise Refused(f"{name} holds more than {_MOST_FILES} files: not looked through")
    return found


def _uses(process: Path, inside: set[tuple[int, int]], real: str) -> bool:
    try:
        for link in (process / "cwd", *(process / "fd").iterdir()):
            status = link.stat()
            if (status.st_dev, status.st_ino) in inside:
                return True
    except OSError:
        pass  # another user's, or it has ended
    try:
        maps = (process / "maps").read_text(errors="replace")
    except OSError:
        return False
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6:
            continue
        major, minor = (int(number, 16) for number in fields[3].split(":"))
        # Some file systems show another device there than to stat: the name has to tell.
        if (os.makedev(major, minor), int(fields[4])) in inside:
            return True
        if fields[5] == real or fields[5].startswith(f"{real}/"):
            return True
    return False
