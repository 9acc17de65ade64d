"""Reads a file, wheel, directory, environment or process for its device code, within a time."""

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ELOOP, ENOENT, ENOTDIR
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO

from volta_doctor.arch import code, process, wheel
from volta_doctor.arch.model import CodeFile, Scan, Target
from volta_doctor.arch.streams import Deadline, TooLate
from volta_doctor.facts.elf import NotRead, Readable
from volta_doctor.probe import CannotLook, NotHere, Probe
from volta_doctor.words import several

LIMIT_S = 120.0  # for one target; a wheel of 900 MB takes a tenth of that
_GRACE_S = 2.0  # for a read that a dead file server holds up
_FILES = 20_000
_UNREAD = 1000
_ARCHIVES = (".whl", ".zip", ".egg")
# What holds no code, by the ends of names, so that it need not be opened
_TEXTS = (
    *(".py", ".pyc", ".pyi", ".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu", ".inl", ".js"),
    *(".txt", ".md", ".rst", ".json", ".yaml", ".yml", ".toml", ".html", ".css", ".csv", ".svg"),
    *(".png", ".jpg", ".gz", ".xz", ".npy", ".npz", ".safetensors", ".gguf", ".pt", ".cmake"),
    *("METADATA", "RECORD", "WHEEL", "INSTALLER", "REQUESTED", "LICENSE", ".typed"),
)
_WITHOUT_CODE = ("__pycache__", ".git")
_NO_FILES = ("/proc", "/sys", "/dev")
_NOT_THERE = (ENOENT, ENOTDIR, ELOOP)


def scan(probe: Probe, target: str, limit: float = LIMIT_S) -> Scan:
    """Read a target: a path, or the id of a process where there is no such path.

    What cannot be read, or not within `limit` seconds, is said in the result. Raises NotHere where
    there is no such target.
    """
    look = _Look(probe, target, limit)
    try:
        probe.within(limit + _GRACE_S, look.run)
    except NotHere:
        raise
    except CannotLook as reason:
        late = f"{look.current}, and what follows: " * (not look.has_ended)
        look.unread.append(f"{late}{reason}")
    return look.result()


class _Look:
    """One look at a target; what it has found so far stands in it at any time."""

    def __init__(self, probe: Probe, target: str, limit: float) -> None:
        self.probe, self.target, self.deadline = probe, target, Deadline(limit)
        self.path = posixpath.normpath(posixpath.join(os.getcwd(), target))  # noqa: PTH109
        self.kind: Target = "file"
        self.files: list[CodeFile] = []
        self.unread: list[str] = []
        self.current = target
        self.has_ended = False
        self._looked_at = 0
        self._seen: set[tuple[int, int]] = set()
        # Reading may act there: what /proc/kmsg has told, it forgets.
        self._kernels_own = self._devices("/proc", "/sys") - self._devices("/")

    def run(self) -> None:
        try:
            self._run()
        except TooLate as reason:
            self.unread.append(f"{self.current} {reason}; what follows was not looked at")
        finally:
            self.has_ended = True

    def result(self) -> Scan:
        files, unread = list(self.files), [_text(reason) for reason in self.unread]
        if len(unread) > _UNREAD:
            unread[_UNREAD:] = [f"{several(len(unread) - _UNREAD, 'more file')} could not be read"]
        return Scan(
            target=_text(self.target),
            kind=self.kind,
            files=files,
            looked_at=self._looked_at,
            unread=unread,
        )

    def _run(self) -> None:
        status = self.probe.stat(self.path)
        if status is None and process.is_pid(self.target):
            self.kind = "process"
            self._read_process(int(self.target))
        elif status is None:
            raise NotHere(f"{self.target}: No such file or directory")
        elif status.st_dev in self._kernels_own:
            raise CannotLook(f"{self.target}: no program lies there (a process is named by its id)")
        elif S_ISDIR(status.st_mode):
            names = self.probe.names(self.path)
            is_env = "pyvenv.cfg" in names or "conda-meta" in names
            self.kind = "venv" if is_env else "directory"
            self._read_directory()
        else:
            with self.probe.open(self.path) as file:
                self._read_target(file, status.st_size)

    def _read_target(self, file: BinaryIO, size: int) -> None:
        if _head(file) in wheel.MAGIC or self.path.endswith(".whl"):
            self.kind = "wheel"
            self._read_wheel(file, self.target)
            return
        self._read_code(file, self.path, self.target, size)

    def _read_directory(self) -> None:
        skip = {*_WITHOUT_CODE, *_NO_FILES}
        for directory, names in self.probe.walk(self.path, skip, self.unread.append):
            shown = self.target.rstrip("/") + directory.removeprefix(self.path.rstrip("/"))
            for name in sorted(names):
                if not name.endswith(_TEXTS) and self._is_file(f"{directory}/{name}"):
                    self._read_file(f"{directory}/{name}", f"{shown}/{name}")

    def _read_process(self, pid: int) -> None:
        found = process.mapped(self.probe, pid)
        self.unread += [
            f"{path}: deleted or replaced since process {pid} loaded it, which still runs the old"
            for path in found.deleted
        ]
        for path in found.files:
            self._read_file(f"/proc/{pid}/root{path}", path)

    def _is_file(self, path: str) -> bool:
        """Say whether there may be a file: no pipe or socket, no link that leads nowhere."""
        try:
            return S_ISREG(self.probe.path(path).stat().st_mode)
        except OSError as error:
            return error.errno not in _NOT_THERE

    def _read_file(self, path: str, shown: str) -> None:
        self.current = shown
        self.deadline.check()
        try:
            with self.probe.open(path) as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity in self._seen or status.st_dev in self._kernels_own:
                    return
                self._seen.add(identity)
                if not shown.endswith(_ARCHIVES):
                    self._read_code(file, path, shown, status.st_size)
                elif shown.endswith(".whl"):
                    self._read_wheel(file, shown)
        except CannotLook as reason:
            self.unread.append(str(reason).replace(path, shown))

    def _read_code(self, file: BinaryIO, path: str, shown: str, size: int) -> None:
        self._looked_at += 1
        self._take(code.read(file, _text(shown), size, self.deadline, self._beside(path)))

    def _read_wheel(self, file: BinaryIO, shown: str) -> None:
        def unread(reason: str) -> None:
            self.unread.append(f"{shown}!{reason}")

        def is_wanted(name: str) -> bool:
            if name.endswith(_ARCHIVES):
                unread(f"{name}: it is an archive in an archive, which is not opened")
                return False
            return not name.endswith(_TEXTS)

        try:
            for member in wheel.members(file, self.deadline, is_wanted, unread):
                self.current = f"{_text(shown)}!{member.name}"
                self._looked_at += 1
                self._take(code.read(member.content, self.current, member.size, self.deadline))
        except NotRead as reason:
            self.unread.append(f"{shown}: it {reason}")

    def _devices(self, *paths: str) -> set[int]:
        return {status.st_dev for status in map(self.probe.stat, paths) if status}

    def _take(self, found: Iterator[CodeFile]) -> None:
        for file in found:
            if len(self.files) == _FILES:
                raise TooLate(f"is not taken: {_FILES} files with device code are as many as fit")
            self.files.append(file)

    def _beside(self, path: str) -> code.Beside:
        directory = posixpath.dirname(path)

        @contextmanager
        def open_beside(name: str) -> Iterator[tuple[Readable, int]]:
            with self.probe.open(posixpath.join(directory, name)) as file:
                yield file, os.fstat(file.fileno()).st_size

        return open_beside


def _head(file: BinaryIO) -> bytes:
    try:
        head = file.read(4)
        file.seek(0)
    except OSError as error:
        raise CannotLook(f"{file.name}: {error.strerror}") from error
    return head


def _text(name: str) -> str:
    """Return a name that can be written, whatever bytes it is made of."""
    return os.fsencode(name).decode(errors="replace")
