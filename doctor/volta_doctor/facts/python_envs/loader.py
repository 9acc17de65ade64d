"""Which CUDA libraries the dynamic linker finds, in the order in which it looks (ld.so(8))."""

import fnmatch
import posixpath
import re
from collections.abc import Iterator

import msgspec

from volta_doctor.facts import elf
from volta_doctor.probe import CannotLook, Probe

_NAME = re.compile(r"libcuda\.so\.1$|libcudart\.so\.\d+(?:\.\d)?$")  # as programs ask for them
_DEFAULTS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/powerpc64le-linux-gnu",
    "/usr/lib/powerpc64le-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)


class CudaLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that is found: `real` is the file, `via` what leads to its directory."""

    name: str
    path: str
    real: str
    via: str


class LibrarySearch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the linker finds for one server (or for this shell), each file once, first come first.

    `problem` says what could not be looked at.
    """

    name: str
    libraries: list[CudaLibrary]
    problem: str = ""


def search(probe: Probe, name: str, env: dict[str, str] | None, root: str = "") -> LibrarySearch:
    """Look along LD_LIBRARY_PATH, ld.so.conf and the default directories under `root`."""
    if env is None:
        return LibrarySearch(
            name=name, libraries=[], problem="its environment is hidden from this user"
        )
    given = re.split(r"[:;]", env.get("LD_LIBRARY_PATH", ""))
    places = [(directory, "LD_LIBRARY_PATH") for directory in given if directory.startswith("/")]
    problem = ""
    try:
        places += configured(probe, root)
    except CannotLook as reason:
        problem = str(reason)
    places += [(directory, "default directory") for directory in _DEFAULTS]
    found: dict[object, CudaLibrary] = {}
    for directory, via in places:
        try:
            for file, library in _libraries(probe, directory, via, root):
                found.setdefault(file, library)
        except CannotLook as reason:
            problem = problem or str(reason)
    return LibrarySearch(name=name, libraries=list(found.values()), problem=problem)


def configured(probe: Probe, root: str = "") -> list[tuple[str, str]]:
    """Return the directories of /etc/ld.so.conf, each with the file that names it."""
    found: list[tuple[str, str]] = []
    read: set[str] = set()

    def take(file: str) -> None:
        if file in read:
            return
        read.add(file)
        for line in (probe.text_or_none(root + file) or "").splitlines():
            words = line.split("#", 1)[0].split()
            if words[:1] == ["include"]:
                for pattern in words[1:]:
                    for path in _glob(probe, pattern, root):
                        take(path)
            elif words and words[0].startswith("/"):
                found.append((words[0], file))

    take("/etc/ld.so.conf")
    return found


def _glob(probe: Probe, pattern: str, root: str) -> list[str]:
    directory, name = posixpath.split(posixpath.join("/etc", pattern))
    return [f"{directory}/{n}" for n in fnmatch.filter(probe.names(root + directory), name)]


def _libraries(
    probe: Probe, directory: str, via: str, root: str
) -> Iterator[tuple[object, CudaLibrary]]:
    """Yield the libraries of a directory, each with what tells it from its other names."""
    for name in filter(_NAME.match, probe.names(root + directory)):
        path = f"{root}{directory}/{name}"
        status = probe.stat(path)
        if status is None:
            continue
        try:
            with probe.open(path) as file:
                elf.sections(file)
        except elf.NotElf:  # it is for 32-bit programs
            continue
        except elf.NotRead as reason:
            raise CannotLook(f"{path} {reason}") from reason
        real = probe.resolve(path)
        yield (
            (name, status.st_dev, status.st_ino),
            CudaLibrary(name=name, path=path, real=real, via=via),
        )
