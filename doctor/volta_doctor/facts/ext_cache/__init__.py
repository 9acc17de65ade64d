"""The `ext_cache` section: what torch and others compiled on this host, and its locks."""

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from volta_doctor.facts import unit_files
from volta_doctor.facts.ext_cache import entries
from volta_doctor.facts.ext_cache.entries import Extension
from volta_doctor.facts.ext_cache.kinds import KINDS, Kind, Place
from volta_doctor.facts.python_envs import SHELL, find_servers, root_of
from volta_doctor.probe import CannotLook, Probe


class CacheUser(msgspec.Struct, frozen=True, kw_only=True):
    """A server that looks into a cache, and the account that it runs under."""

    server: str
    account: str


class Cache(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A directory of what one tool compiled, for one Python, version or set of architectures.

    `kind` names the tool and `root` is the top of its cache, empty where that is `path`. `tag`
    names Python and CUDA (py311_cu128), `version` the tool's, `archs` what it was built for; they
    are told by names, or are not. `used_by` names the servers, or this shell, that would look
    there, and `users` tells those servers' accounts, which should be its `owner`. `inode`
    identifies it, None for a link.

    `extensions` lists the entries of a ninja build. Of the other caches `count` says how many
    entries there are, `newest` when the last was made, in seconds since the epoch, and `kernels`
    how many were made for an architecture by a version ("3.5.0 sm_70"). `aside` are the names of
    what was set aside in it. `problem` says why it could not be read.
    """

    path: str
    kind: str = "torch_extensions"
    root: str = ""
    tag: str | None = None
    version: str | None = None
    archs: list[str] = []
    used_by: list[str] = []
    owner: str | None = None
    users: list[CacheUser] = []
    inode: int | None = None
    extensions: list[Extension]
    count: int = 0
    newest: int | None = None
    kernels: dict[str, int] = {}
    aside: list[str] = []
    problem: str = ""


class ExtCacheFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The caches; `time` is the host's clock at the look.

    `problem` is why a cache may have been missed.
    """

    time: int
    caches: list[Cache]
    problem: str = ""


class _User(NamedTuple):
    """Somebody who would look into caches: a server, or this shell."""

    name: str
    env: dict[str, str]
    account: str | None
    inside: str


class _Root(NamedTuple):
    """A cache that is in use, and who looks there."""

    kind: Kind
    place: Place
    users: list[_User]


def find(probe: Probe) -> ExtCacheFacts:
    """Find the caches; other collectors call it through `probe.once(find)`."""
    users, problems = _users(probe)
    owners = {a.uid: a.name for a in unit_files.accounts(probe).values()}
    caches = [
        cache
        for (_, path), root in _roots(users).items()
        for cache in _caches(probe, path, root, owners)
    ]
    return ExtCacheFacts(time=int(probe.time()), caches=caches, problem="; ".join(problems))


def collect(probe: Probe) -> ExtCacheFacts:
    """Look where the servers' users and this shell keep what was compiled for them."""
    return probe.once(find)


def _users(probe: Probe) -> tuple[list[_User], list[str]]:
    servers, problem = find_servers(probe)
    problems = [problem] if problem else []
    problems += [f"{s.name}: {s.env_problem}" for s in servers if s.prefix and s.env is None]
    users = [_User(SHELL, probe.env, probe.env.get("USER"), "")]
    for server in servers:
        if server.prefix:
            inside = root_of(server)
            home = (server.home or "").removeprefix(inside)
            env = ({"HOME": home} if home else {}) | (server.env or {})
            users.append(_User(server.name, env, server.user, inside))
    return users, problems


def _roots(users: list[_User]) -> dict[tuple[str, str], _Root]:
    """Return the caches that are in use, by kind and path."""
    roots: dict[tuple[str, str], _Root] = {}
    for user in users:
        for kind in KINDS:
            usable = (p for p in kind.places if not p.variable or user.env.get(p.variable))
            place = next(usable, None)
            if place is None or ("{user}" in place.below and not user.account):
                continue
            below = place.below.replace("{user}", user.account or "")
            path = posixpath.join(user.env.get(place.variable, "/"), below)
            if posixpath.isabs(path):
                path = user.inside + posixpath.normpath(path)
                roots.setdefault((kind.name, path), _Root(kind, place, [])).users.append(user)
    return roots


def _caches(probe: Probe, path: str, root: _Root, owners: dict[int, str]) -> Iterator[Cache]:
    known_accounts = {*owners.values()}
    users = [
        CacheUser(server=user.name, account=user.account)
        for user in root.users
        if user.name != SHELL and not user.inside and user.account in known_accounts
    ]
    known = Cache(
        path=path,
        kind=root.kind.name,
        used_by=[user.name for user in root.users],
        users=users,
        extensions=[],
    )
    try:
        for pattern in root.place.groups:
            for group, told in entries.groups(probe, path, pattern):
                cache = _read(probe, msgspec.structs.replace(known, path=group), root.kind, owners)
                if not (cache.extensions or cache.count or cache.aside or pattern or cache.problem):
                    continue
                archs = told.get("archs")
                yield msgspec.structs.replace(
                    cache,
                    root=path if group != path else "",
                    tag=told.get("tag"),
                    version=told.get("version"),
                    archs=archs.split("_") if archs else [],
                )
        if root.place.groups != ("",) and (aside := entries.set_aside_in(probe, path)):
            yield msgspec.structs.replace(known, aside=aside)
    except CannotLook as reason:
        yield msgspec.structs.replace(known, problem=str(reason))


def _read(probe: Probe, cache: Cache, kind: Kind, owners: dict[int, str]) -> Cache:
    try:
        status = probe.stat(cache.path)
        if status is None:
            return cache
        # The accounts of a container are its own.
        hidden = cache.path.startswith("/proc/")
        found = entries.read(probe, cache.path, kind, {} if hidden else owners)
        return msgspec.structs.replace(
            cache,
            owner=None if hidden else owners.get(status.st_uid, str(status.st_uid)),
            inode=entries.inode(probe, cache.path, status),
            extensions=found.extensions,
            count=found.entries,
            newest=found.newest,
            kernels=found.kernels,
            aside=found.aside,
        )
    except CannotLook as reason:
        return msgspec.structs.replace(cache, problem=str(reason))
