"""A target as sections of facts, so that the catalogue's checks judge it."""

import re

from msgspec import structs

from volta_doctor.arch.model import CodeFile, Scan
from volta_doctor.arch.wheel_metadata import wheel_env
from volta_doctor.facts import proc, release
from volta_doctor.facts.model import Facts, Section, absent
from volta_doctor.facts.python_envs import (
    RELEASE,
    SHELL,
    PythonEnv,
    PythonEnvsFacts,
    find_servers,
    identity,
    read_env,
    root_of,
)
from volta_doctor.facts.python_envs.loader import LibrarySearch, search
from volta_doctor.facts.release import current_release
from volta_doctor.facts.serve import ServeFacts, Server, interpreter
from volta_doctor.facts.serve.command_line import Command
from volta_doctor.facts.so_archs import SharedObject, SoArchsFacts, interpreter_tag
from volta_doctor.probe import CannotLook, Probe

_CUDART = re.compile(r"libcudart\.so\.\d+")


def facts_of(probe: Probe, scan: Scan, host: Facts) -> Facts:
    """Return the host's facts with those of a target: its environment, files and servers."""
    env, servers, searches = _environment(probe, scan, host.pci != absent())
    # What this host's linker finds says nothing of the driver of another.
    searches = searches if host.pci != absent() else []
    found = PythonEnvsFacts(envs=[env] if env else [], searches=searches)
    name = env.prefix if env else scan.target
    objects = SoArchsFacts(
        objects=[
            _object(file, scan, env, name)
            for file in scan.files
            if not _by_version(file, env) and not scan.is_loose(file)
        ],
        looked_at=scan.looked_at,
        unread={name: scan.unread} if scan.unread else {},
    )
    facts = structs.replace(
        host,
        python_envs=Section(ok=True, data=found),
        so_archs=Section(ok=True, data=objects),
    )
    if servers:
        serve = Section(ok=True, data=ServeFacts(servers=servers))
        facts = structs.replace(facts, serve=serve)
    if env and RELEASE in env.used_by:
        facts = structs.replace(facts, release=_release(probe))
    return facts


def _environment(
    probe: Probe, scan: Scan, is_this_host: bool
) -> tuple[PythonEnv | None, list[Server], list[LibrarySearch]]:
    """Return the environment of a target, the servers in it, and what their linker finds."""
    if scan.kind == "wheel":
        return wheel_env(probe, scan), [], []
    if scan.kind == "venv":
        servers = [s for s in find_servers(probe)[0] if s.prefix and _same(probe, s, scan.target)]
        used_by = [RELEASE] * _is_release(probe, scan.target) + [s.name for s in servers]
        searches = [search(probe, s.name, s.env, root_of(s)) for s in servers]
        if not servers and is_this_host:
            used_by, searches = [*used_by, SHELL], [search(probe, SHELL, probe.env)]
        return read_env(probe, scan.target, servers, used_by), servers, searches
    if scan.kind == "process":
        return _of_process(probe, int(scan.target))
    return None, [], []


def _same(probe: Probe, server: Server, prefix: str) -> bool:
    return identity(probe, server.prefix or "") == identity(probe, prefix)


def _is_release(probe: Probe, prefix: str) -> bool:
    try:
        return identity(probe, f"{current_release(probe)}/venv") == identity(probe, prefix)
    except CannotLook:
        return False


def _release(probe: Probe) -> "Section[release.ReleaseFacts]":
    try:
        return Section(ok=True, data=release.collect(probe))
    except CannotLook as reason:
        return Section(ok=False, error=str(reason))


def _of_process(
    probe: Probe, pid: int
) -> tuple[PythonEnv | None, list[Server], list[LibrarySearch]]:
    """Return what is known of a process; one that is a server brings its flags along."""
    for server in find_servers(probe)[0]:
        if pid in server.pids:
            searches = [search(probe, server.name, server.env, root_of(server))]
            env = read_env(probe, server.prefix, [server], [server.name]) if server.prefix else None
            return env, [server], searches
    name = f"pid {pid}"
    root = f"/proc/{pid}/root" if proc.cgroup_of(probe, pid).container else ""
    try:
        argv = proc.argv_of(probe, pid)
        variables = proc.environ_of(probe, pid)
    except CannotLook:
        return None, [], [search(probe, name, None)]
    exe = probe.link(f"/proc/{pid}/exe")
    _, prefix = interpreter.find(probe, Command(argv), variables, exe, root)
    env = read_env(probe, prefix, [], [name]) if prefix else None
    return env, [], [search(probe, name, variables, root)]


def _by_version(file: CodeFile, env: PythonEnv | None) -> bool:
    """Say whether torch-arch or cudnn judge a file by what it belongs to."""
    if env is None:
        return False
    inside = re.split(r"/site-packages/|/dist-packages/|!", file.path)[-1]
    of_torch = env.torch is not None and inside.startswith("torch/")
    return of_torch or (env.cudnn is not None and re.search(r"libcudnn\w*\.so", inside) is not None)


def _object(file: CodeFile, scan: Scan, env: PythonEnv | None, name: str) -> SharedObject:
    return SharedObject(
        path=file.path,
        env=name,
        code=file.code,
        ptx_isa=file.ptx_isa,
        runtime=next((soname for soname in file.needs if _CUDART.match(soname)), None),
        tag=_foreign_tag(file, scan, env) if env and scan.kind != "wheel" else None,
        problem=file.problem,
    )


def _foreign_tag(file: CodeFile, scan: Scan, env: PythonEnv) -> str | None:
    """Return the tag of a module for another Python that has no brother for this one."""
    tag = interpreter_tag(file.path)
    if tag in (None, env.tag):
        return None
    stem = file.path.split(".cpython-", 1)[0]
    fitting = (f for f in scan.files if interpreter_tag(f.path) == env.tag)
    return None if any(f.path.startswith(f"{stem}.cpython-") for f in fitting) else tag
