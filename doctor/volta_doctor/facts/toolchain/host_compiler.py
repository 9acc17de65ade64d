"""The GCC that nvcc hands the host's part of a source to, and which version it is.

nvcc refuses a GCC that is newer than its release knows. Which one it takes: nvcc's documentation,
"Environment Variables" and --compiler-bindir; torch.utils.cpp_extension passes on CC.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator

import msgspec

from volta_doctor.facts.python_envs.layout import container_root
from volta_doctor.probe import CannotLook, Probe

_VERSION_OF_NAME = re.compile(r"(?:gcc|g\+\+)-(\d+)(?:\.\d+)*$")
_FLAG = re.compile(r"(?:-ccbin|--compiler-bindir)(?:=(.+))?$")
_SCRIPT = b"#!"


class HostCompiler(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GCC's path, what chose it, and its major version (12).

    `version` is None where it is no GCC, or one that does not tell: ccache, clang, a script.
    """

    path: str
    by: str = ""
    version: int | None = None


def find(
    probe: Probe, env: dict[str, str], nvcc: str, search: list[str], root: str
) -> HostCompiler | None:
    """Return the compiler that an nvcc (the program itself) runs, None where there is none.

    `search` are the directories of PATH. nvcc looks into its own directory first, where Debian has
    a script that takes a compiler which fits.
    """
    directories = [posixpath.dirname(nvcc), *search]
    for by, name in _chosen(env):
        given = [f"{root}{name}"] if name.startswith("/") else [f"{d}/{name}" for d in directories]
        path = next((path for path in given if probe.exists(path)), None)
        if path is None:
            return HostCompiler(path=name, by=by)
        inside = f"{path}/gcc"  # -ccbin may name the directory
        path = inside if probe.exists(inside) else path
        return HostCompiler(path=path, by=by, version=_version(probe, path))
    path = next((f"{d}/gcc" for d in directories if probe.exists(f"{d}/gcc")), None)
    return HostCompiler(path=path, by="PATH", version=_version(probe, path)) if path else None


def others(probe: Probe, root: str = "") -> list[HostCompiler]:
    """Return the GCCs that a distribution installs beside its own, each with its C++ part."""
    names = set(probe.names(f"{root}/usr/bin"))
    found = [name for name in names if re.fullmatch(r"gcc-\d+", name)]
    return [
        HostCompiler(path=f"{root}/usr/bin/{name}", version=int(name[4:]))
        for name in sorted(found, key=lambda name: int(name[4:]))
        if f"g++-{name[4:]}" in names
    ]


def _chosen(env: dict[str, str]) -> Iterator[tuple[str, str]]:
    if env.get("CC"):
        yield "CC", env["CC"].split()[0]
    for variable in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        try:
            words = shlex.split(env.get(variable, ""))
        except ValueError:  # a quotation mark that is never closed
            continue
        for index, word in enumerate(words):
            match = _FLAG.match(word)
            if match and (name := match[1] or next(iter(words[index + 1 :]), "")):
                yield variable, name
    if env.get("NVCC_CCBIN"):
        yield "NVCC_CCBIN", env["NVCC_CCBIN"]


def _version(probe: Probe, path: str) -> int | None:
    """Return a GCC's major version by its name, else by the directory of its C++ compiler."""
    try:
        real = probe.resolve(path)
        if match := _VERSION_OF_NAME.search(real):
            return int(match[1])
        if not re.search(r"(?:gcc|g\+\+)$", real):
            return None
        with probe.open(real) as file:
            if file.read(len(_SCRIPT)) == _SCRIPT:
                return None
        prefix = posixpath.dirname(posixpath.dirname(real))
        libraries = [
            f"{prefix}/lib/gcc",
            f"{prefix}/libexec/gcc",
            f"{container_root(real)}/usr/lib/gcc",
        ]
        versions = {
            int(version.split(".")[0])
            for directory in libraries
            for target in probe.names(directory)
            for version in probe.names(f"{directory}/{target}")
            if re.fullmatch(r"\d+(?:\.\d+)*", version)
            and probe.exists(f"{directory}/{target}/{version}/cc1plus")
        }
    except CannotLook:
        return None
    return versions.pop() if len(versions) == 1 else None
