"""The `ext_cache` section: extensions that torch compiled on this host, and their locks.

torch.utils.cpp_extension keeps them in $TORCH_EXTENSIONS_DIR/NAME, else in
~/.cache/torch_extensions/pyXY_cuZZZ/NAME; while it builds one, a file `lock` lies beside it.
"""

import posixpath
import re
from collections.abc import Iterator
from stat import S_ISDIR

import msgspec

from volta_doctor.facts.python_envs import SHELL, find_servers, root_of
from volta_doctor.probe import CannotLook, Probe

_TAG = re.compile(r"py\d+t?_(?:cu\d+|cpu)$")


class Extension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One extension's build directory; times are in seconds since the epoch, None where none is.

    `built` is when its newest library was made.
    """

    name: str
    built: int | None = None
    locked: int | None = None


class Cache(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A directory of extensions for one Python and CUDA.

    `tag` names these (py311_cu128); a cache of $TORCH_EXTENSIONS_DIR has none. `used_by` names the
    servers, or this shell, that would look there. `problem` says why it could not be read.
    """

    path: str
    tag: str | None = None
    used_by: list[str] = []
    extensions: list[Extension]
    problem: str = ""


class ExtCacheFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The caches; `time` is the host's clock at the look.

    `problem` is why a cache may have been missed.
    """

    time: int
    caches: list[Cache]
    problem: str = ""


def find(probe: Probe) -> ExtCacheFacts:
    """Find the caches; other collectors call it through `probe.once(find)`."""
    roots, problems = _roots(probe)
    caches: list[Cache] = []
    for root, (is_tagged, used_by) in roots.items():
        try:
            found = list(_caches(probe, root, is_tagged, used_by))
        except CannotLook as reason:
            found = [Cache(path=root, used_by=used_by, extensions=[], problem=str(reason))]
        caches += found
    return ExtCacheFacts(time=int(probe.time()), caches=caches, problem="; ".join(problems))


def _roots(probe: Probe) -> tuple[dict[str, tuple[bool, list[str]]], list[str]]:
    """Return each root with whether tagged directories lie in it and who looks there."""
    servers, problem = find_servers(probe)
    environments = [(SHELL, probe.env, probe.env.get("HOME"), "")]
    environments += [(s.name, s.env or {}, s.home, root_of(s)) for s in servers if s.prefix]
    problems = [problem] if problem else []
    problems += [f"{s.name}: {s.env_problem}" for s in servers if s.prefix and s.env is None]
    roots: dict[str, tuple[bool, list[str]]] = {}
    for name, env, home, inside in environments:
        given, cache = env.get("TORCH_EXTENSIONS_DIR"), env.get("XDG_CACHE_HOME")
        if given or cache:
            path = inside + (given or f"{cache}/torch_extensions")
        elif home:
            path = f"{home}/.cache/torch_extensions"
        else:
            continue
        if posixpath.isabs(path):
            roots.setdefault(posixpath.normpath(path), (not given, []))[1].append(name)
    return roots, problems


def _caches(probe: Probe, root: str, is_tagged: bool, used_by: list[str]) -> Iterator[Cache]:
    if not is_tagged:
        if extensions := list(_extensions(probe, root)):
            yield Cache(path=root, used_by=used_by, extensions=extensions)
        return
    for name in filter(_TAG.match, probe.names(root)):
        path = f"{root}/{name}"
        try:
            extensions, problem = list(_extensions(probe, path)), ""
        except CannotLook as reason:
            extensions, problem = [], str(reason)
        yield Cache(path=path, tag=name, used_by=used_by, extensions=extensions, problem=problem)


def _extensions(probe: Probe, directory: str) -> Iterator[Extension]:
    for name in probe.names(directory):
        path = f"{directory}/{name}"
        status = probe.stat(path)
        if status is None or not S_ISDIR(status.st_mode):
            continue
        files = probe.names(path)
        times = [probe.stat(f"{path}/{file}") for file in files if file.endswith(".so")]
        lock = probe.stat(f"{path}/lock") if "lock" in files else None
        yield Extension(
            name=name,
            built=max((int(time.st_mtime) for time in times if time), default=None),
            locked=int(lock.st_mtime) if lock else None,
        )


def collect(probe: Probe) -> ExtCacheFacts:
    """Look where the servers' users and this shell keep compiled extensions."""
    return probe.once(find)
