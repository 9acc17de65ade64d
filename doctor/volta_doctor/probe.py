"""The only place that looks at the host: files, commands, HTTP and one RPC.

Collectors ask a `Probe` and never the system itself, so that a test can answer for the host with
a directory tree and canned command results.
"""

import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from volta_doctor import command, network
from volta_doctor.command import Completed
from volta_doctor.deadline import within
from volta_doctor.network import Answer

T = TypeVar("T")

# Tools of the administrator that an ordinary user's PATH may lack (modinfo, dkms).
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_RECORD_BYTES = 8192  # the kernel's own limit for one /dev/kmsg record
_MAX_LINKS = 40  # as many symbolic links as Linux follows before ELOOP


class CannotLook(Exception):  # noqa: N818 - it is an answer, not an accident
    """Why a fact could not be had, in words for the user."""


class NotHere(CannotLook):
    """What was looked for is not on this host, and nothing says that it should be."""


class NobodyThere(CannotLook):
    """Nothing listens on a socket: it does not exist, or its server has ended."""


class Disk(NamedTuple):
    """The file system that holds `path` (links followed); `free` is what any user may take."""

    path: str
    total: int
    free: int
    read_only: bool


class Probe:
    """Reads one host.

    `env` is the caller's environment. `root` stands before every path and has the commands that
    there are; without one it is $VOLTA_DOCTOR_SYSROOT, for a host that is a directory, else `/`.
    """

    def __init__(
        self, root: Path | str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.env = dict(os.environ if env is None else env)
        self.root = Path(self.env.get("VOLTA_DOCTOR_SYSROOT", "/") if root is None else root)
        self._known: dict[Callable[[Probe], Any], Any] = {}
        self._locks: dict[Callable[[Probe], Any], threading.RLock] = {}
        self._knowing = threading.Lock()

    def once(self, find: Callable[["Probe"], T]) -> T:
        """Return what `find` says of this host, asking it only once: collectors share some facts.

        The CannotLook that it raised is remembered as well.
        """
        with self._knowing:
            lock = self._locks.setdefault(find, threading.RLock())
        with lock:  # of its own: a find that hangs must not hold up the others
            if find not in self._known:
                try:
                    self._known[find] = find(self)
                except CannotLook as reason:
                    self._known[find] = reason
            found = self._known[find]
        if isinstance(found, CannotLook):
            raise found
        return cast(T, found)

    def path(self, path: Path | str) -> Path:
        """Return where the host's absolute `path` really lies."""
        return self.root / str(path).lstrip("/")

    def data(self, path: Path | str) -> bytes:
        """Return a file's content. Raises CannotLook with the path and the system's reason."""
        try:
            return self.path(path).read_bytes()
        except OSError as error:
            raise CannotLook(f"{path}: {error.strerror}") from error

    def text(self, path: Path | str) -> str:
        """Return a file's content as text; bytes that are not UTF-8 are replaced."""
        return self.data(path).decode(errors="replace")

    def text_or_none(self, path: Path | str) -> str | None:
        """Return a file's content, or None where there is no such file."""
        return self.text(path) if self.exists(path) else None

    def exists(self, path: Path | str) -> bool:
        """Say whether the path exists. Raises CannotLook where this user may not know."""
        return self.stat(path) is not None

    def stat(self, path: Path | str) -> os.stat_result | None:
        """Return a file's status, links followed; None where there is none. Raises CannotLook."""
        try:
            return self.path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CannotLook(f"{path}: {error.strerror}") from error

    def open(self, path: Path | str) -> BinaryIO:
        """Open a file to read parts of it. Raises CannotLook.

        A device, a pipe or a socket is refused before it is opened, for that may have effects.
        """
        real = self.path(path)
        try:
            if not S_ISREG(real.stat().st_mode):
                raise CannotLook(f"{path}: not a file")
            fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise CannotLook(f"{path}: {error.strerror}") from error
        if not S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CannotLook(f"{path}: not a file")
        return os.fdopen(fd, "rb")

    def walk(
        self, directory: Path | str, skip: Container[str], unread: Callable[[str], None]
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield every directory below one, itself first, with the names of its files.

        Directories whose name or path is in `skip` and links to directories are left out; `unread`
        is told of those that cannot be read.
        """
        before = str(self.root).rstrip("/")
        todo = [str(self.path(directory))]
        while todo:  # os.walk calls itself, and a thousand levels are more than Python bears
            path = todo.pop()
            here = path.removeprefix(before)
            try:
                entries = list(os.scandir(path))
            except OSError as error:
                unread(f"{here}: {error.strerror}")
                continue
            yield here, [entry.name for entry in entries if not _is_directory(entry)]
            below = sorted(e.name for e in entries if _is_directory(e, follow_links=False))
            todo += [
                f"{path.rstrip('/')}/{name}"
                for name in reversed(below)
                if name not in skip and f"{here.rstrip('/')}/{name}" not in skip
            ]

    def names(self, directory: Path | str) -> list[str]:
        """Return the sorted names in a directory, none where there is no such directory."""
        try:
            return sorted(entry.name for entry in os.scandir(self.path(directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CannotLook(f"{directory}: {error.strerror}") from error

    def link(self, path: Path | str) -> str | None:
        """Return a symbolic link's target as written, or None where there is no link."""
        try:
            return str(self.path(path).readlink())
        except OSError:
            return None

    def resolve(self, path: Path | str) -> str:
        """Follow the symbolic links of the last path element, as seen from `root`."""
        current = str(path)
        for _ in range(_MAX_LINKS):
            target = self.link(current)
            if target is None:
                return current
            current = os.path.normpath(Path(current).parent / target)
        raise CannotLook(f"{path}: too many levels of symbolic links")

    def records(self, path: Path | str) -> Iterator[str]:
        """Yield what a device that gives one record a read holds now, without waiting for more."""
        try:
            fd = os.open(self.path(path), os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise CannotLook(f"{path}: {error.strerror}") from error
        try:
            while True:
                try:
                    record = os.read(fd, _RECORD_BYTES)
                except BrokenPipeError:
                    continue  # the kernel overwrote the next record; the one after it follows
                except BlockingIOError:
                    return
                if not record:
                    return
                yield record.decode(errors="replace")
        except OSError as error:
            raise CannotLook(f"{path}: {error.strerror}") from error
        finally:
            os.close(fd)

    def disk(self, path: Path | str) -> Disk:
        """Return the file system of a path that exists. Raises CannotLook.

        Below /proc links are not followed: /proc/PID/root reads as / and leads elsewhere.
        """
        try:
            real = self.path(path)
            real = real if str(path).startswith("/proc/") else real.resolve()
            stat = os.statvfs(real)
        except OSError as error:
            raise CannotLook(f"{path}: {error.strerror}") from error
        inside = os.path.normpath(f"/{os.path.relpath(real, self.root.resolve())}")
        unit, read_only = stat.f_frsize, bool(stat.f_flag & os.ST_RDONLY)
        return Disk(inside, stat.f_blocks * unit, stat.f_bavail * unit, read_only)

    def within(self, limit: float, look: Callable[[], T]) -> T:
        """Return what `look` finds, or raise CannotLook when it takes longer: a dead file server.

        The look goes on behind; the process can end nevertheless.
        """
        try:
            return within(limit, look)
        except TimeoutError as error:
            raise CannotLook(str(error)) from error

    def which(self, name: str) -> str | None:
        """Return the path of a command, also from the administrator's directories."""
        for directory in self._search_path():
            candidate = f"{directory}/{name}"
            if os.access(self.path(candidate), os.X_OK) and not self.path(candidate).is_dir():
                return candidate
        return None

    def run(self, *argv: str, limit: float, take: Callable[[str], None] | None = None) -> Completed:
        """Run a command for at most `limit` seconds. Raises CannotLook when it cannot start.

        With `take` each piece of its output goes there at once and none is kept, for output that
        memory may not hold. A command stuck in the kernel (a wedged driver) does not die of
        SIGKILL: it is left behind rather than waited for.
        """
        path = ":".join(str(self.path(d)) for d in self._search_path())
        file = self.which(argv[0]) if "/" not in argv[0] else argv[0]
        if file is None:
            raise CannotLook(f"{argv[0]}: No such file or directory")
        env = self.env | {"LC_ALL": "C", "PATH": path}
        try:
            return command.run(argv, env, limit, executable=self.path(file), take=take)
        except OSError as error:
            raise CannotLook(f"{argv[0]}: {error.strerror}") from error

    def get(self, url: str, limit: float) -> Answer:
        """Ask an HTTP server of this host, never through a proxy, for at most `limit` seconds."""
        return network.get(url, limit)

    def rpc(self, socket_path: Path | str, method: str, *args: str) -> Any:
        """Call an XML-RPC method on a Unix socket (supervisord's).

        Raises NobodyThere when no server listens, CannotLook for every other reason.
        """
        import xmlrpc.client

        proxy = network.rpc_over(str(self.path(socket_path)))
        try:
            return getattr(proxy, method)(*args)
        except xmlrpc.client.Error as error:  # a fault, or an HTTP error such as 401
            raise CannotLook(f"{socket_path}: {error}") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NobodyThere(f"{socket_path}: {error.strerror}") from error
        except OSError as error:
            raise CannotLook(f"{socket_path}: {error.strerror or error}") from error

    @property
    def is_root(self) -> bool:
        """Whether this process may read everything."""
        return os.geteuid() == 0

    def monotonic(self) -> float:
        """Return seconds since boot on the clock that systemd's *Monotonic properties use."""
        return time.monotonic()

    def time(self) -> float:
        """Return the host's clock in seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait between two samples."""
        time.sleep(seconds)

    def _search_path(self) -> list[str]:
        # An empty PATH element means the current directory, where no tool of the host lies.
        given = self.env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
        return [d for d in dict.fromkeys([*given, *_SBIN]) if d.startswith("/")]


def _is_directory(entry: "os.DirEntry[str]", follow_links: bool = True) -> bool:
    """Say whether an entry is a directory, or a link to one; a link in a circle is none."""
    try:
        return entry.is_dir(follow_symlinks=follow_links)
    except OSError:
        return False
