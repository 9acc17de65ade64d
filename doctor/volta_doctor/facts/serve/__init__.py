"""The `serve` section: every server of language models on this host, and how it was told to run.

A server is a unit that starts one, or a process that is one. Here is what it was told: its command
line, the environment variables that matter to GPUs, and the flags in them, under one name
whatever the engine calls them.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from volta_doctor.facts import proc
from volta_doctor.facts.serve import interpreter, model_files, nccl_conf
from volta_doctor.facts.serve.command_line import (
    allowed,
    hidden,
    members,
    options,
    without_secrets,
)
from volta_doctor.facts.serve.engines import Flags, read_flags
from volta_doctor.facts.serve.sources import Launch, from_processes, from_release, from_units
from volta_doctor.probe import CannotLook, Probe
from volta_doctor.words import several

T = TypeVar("T")


class Server(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server.

    `name` is its unit, else `container ID` or `pid N`: the subject of findings about it. `engine`
    is embedded, vllm, 1cat-vllm, lmdeploy, sglang, llamacpp, ollama or tgi. `source` is the file
    that starts it, or /proc/PID. `pids` are its processes, none while it is down. `argv` and `env`
    are free of secrets; `env` is None, for `env_problem`, where this user may not see it.
    `flags_problem` says which flags could not be read. `python` is its interpreter and `prefix`
    that one's environment, None for a server that is no Python program and, for `python_problem`,
    where they were not found. `home` is where its user's caches lie. `model_dir` is None without
    such a directory, or for `model_problem`. `nccl_files` are the nccl.conf files in effect and
    `nccl_conf` the NCCL variables in them, none for `nccl_problem`. The paths of a server in a
    container begin with /proc/PID/root.
    """

    name: str
    engine: str
    source: str
    argv: list[str] = []
    flags: Flags = Flags()
    flags_problem: str = ""
    unit: str | None = None
    container: str | None = None
    pids: list[int] = []
    env: dict[str, str] | None = None
    env_problem: str = ""
    user: str | None = None
    home: str | None = None
    python: str | None = None
    prefix: str | None = None
    python_problem: str = ""
    model_dir: str | None = None
    model_problem: str = ""
    nccl_files: list[str] = []
    nccl_conf: dict[str, str] = {}
    nccl_problem: str = ""


class ServeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The servers; `hidden` counts processes whose command line this user may not see.

    `problem` is why a server may have been missed, empty where none can be.
    """

    servers: list[Server]
    hidden: int = 0
    problem: str = ""


def find(probe: Probe) -> ServeFacts:
    """Find the servers; other collectors call it through `probe.once(find)`.

    What a server runs with outweighs what its unit would start; where several run in one unit they
    stand for it. The release's server is listed even where its unit is gone.
    """
    running, hidden = from_processes(probe)
    release, units = from_release(probe), from_units(probe)
    prepared = {(launch.name, launch.manager): launch for launch in units}
    if release and not any(launch.name == release.name for launch in units):
        prepared[release.name, None] = release
    crowded = {(launch.unit, launch.manager) for launch in running if launch.name != launch.unit}
    launches = {key: launch for key, launch in prepared.items() if key not in crowded}
    for launch in running:
        key = (launch.name, launch.manager)
        if release and release.unit is None and release.command.words[0] in launch.command.words:
            key = (release.name, None)  # supervisord is one unit, whatever it runs
        launches[key] = _joined(probe, launch, prepared[key]) if key in prepared else launch
    return ServeFacts(
        servers=[_server(probe, launch) for launch in _distinct(launches.values())],
        hidden=hidden,
        problem=_blind_spot(probe, hidden),
    )


def _distinct(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Give each a name of its own: users may have units of one name, as the system may."""
    every = list(launches)
    names = [launch.name for launch in every]
    for launch in every:
        shared = launch.manager and names.count(launch.name) > 1
        yield launch._replace(name=f"{launch.name} of {launch.manager}") if shared else launch


def collect(probe: Probe) -> ServeFacts:
    """Return what every collector knows of the servers."""
    return probe.once(find)


def _blind_spot(probe: Probe, hidden: int) -> str:
    if hidden:
        return f"the command line is hidden of {several(hidden, 'process')}: run again with sudo"
    mounts = probe.text_or_none("/proc/self/mounts") or ""
    options = [line.split()[3] for line in mounts.splitlines() if line.split()[1:2] == ["/proc"]]
    if not probe.is_root and any("hidepid=" in option for option in options):
        return "/proc shows only this user's processes (hidepid): run again with sudo"
    return ""


def _joined(probe: Probe, running: Launch, prepared: Launch) -> Launch:
    """Put together a server's process and the unit that it came from."""
    pids = set(running.pids)
    if running.unit and running.unit == prepared.unit:
        # What it started and lost is no descendant, but still in its control group.
        group = proc.cgroup_of(probe, running.pids[0])
        pids |= {pid for pid in probe.once(proc.table) if proc.cgroup_of(probe, pid) == group}
    seen = running.env is not None
    return running._replace(
        name=prepared.name,
        source=prepared.source,
        env=running.env if seen else prepared.env,
        env_problem="" if seen else prepared.env_problem,
        pids=tuple(sorted(pids)),
        user=running.user or prepared.user,
        home=running.home or prepared.home,
    )


def _server(probe: Probe, launch: Launch) -> Server:
    env = launch.env or {}
    config, config_problem = _configuration(probe, launch)
    flags, wrong = read_flags(launch.engine, launch.words, env, config)
    engine = launch.engine.name
    no_python: tuple[str | None, str | None] = (None, None)
    (python, prefix), python_problem = _or_why(
        lambda: interpreter.find(probe, launch.command, env, launch.exe, launch.root), no_python
    )
    if prefix is None and launch.engine.python and not python_problem:
        python_problem = f"the Python that runs {launch.command.words[0]} was not found"
        if launch.pids and launch.exe is None:
            python_problem += f" ({launch.source}/exe is hidden: run again with sudo)"
    if engine == "vllm" and prefix and _or_why(lambda: _is_fork(probe, prefix), False)[0]:
        engine = "1cat-vllm"
    model, places = flags.model, (env, launch.home, launch.directory, launch.root)
    model_dir, model_problem = _or_why(
        lambda: model_files.find(probe, model, flags.revision, *places) if model else None, None
    )
    no_files: tuple[list[str], dict[str, str]] = ([], {})
    (nccl_files, nccl_variables), nccl_problem = _or_why(
        lambda: nccl_conf.find(probe, env, launch.home, launch.root), no_files
    )
    return Server(
        name=launch.name,
        engine=engine,
        source=launch.source,
        argv=without_secrets(launch.command.words),
        flags=msgspec.structs.replace(flags, model=hidden(model) if model else None),
        flags_problem="; ".join(filter(None, [config_problem, wrong])),
        unit=launch.unit,
        container=launch.container,
        pids=list(launch.pids),
        env=allowed(env) if launch.env is not None else None,
        env_problem=launch.env_problem,
        user=launch.user,
        home=launch.root + launch.home if launch.home else None,
        python=python,
        prefix=prefix,
        python_problem=python_problem,
        model_dir=model_dir,
        model_problem=model_problem,
        nccl_files=nccl_files,
        nccl_conf=allowed(nccl_variables),
        nccl_problem=nccl_problem,
    )


def _or_why(look: Callable[[], T], otherwise: T) -> tuple[T, str]:
    """Return what is found; what stands for nothing and the reason, where it cannot be looked."""
    try:
        return look(), ""
    except CannotLook as reason:
        return otherwise, f"{reason}: run again with sudo"


def _configuration(probe: Probe, launch: Launch) -> tuple[dict[str, str], str]:
    """Return the options in the server's configuration file, and why it could not be read."""
    path = options(launch.words)[1].get(launch.engine.config)
    if path is None:
        return {}, ""
    import yaml

    path = launch.root + posixpath.join(launch.directory or "/", path)
    try:
        content = yaml.safe_load(probe.text(path))
        if not isinstance(content, dict):
            return {}, f"{path}: no mapping of options"
        return members("", content), ""
    except CannotLook as reason:
        return {}, str(reason)
    except RecursionError:
        return {}, f"{path}: nested too deep"
    except yaml.YAMLError as error:  # its text quotes the file, where a key may stand
        mark = getattr(error, "problem_mark", None)
        return {}, f"{path}: no sound YAML" + (f", line {mark.line + 1}" if mark else "")


def _is_fork(probe: Probe, prefix: str) -> bool:
    """Say whether the vLLM of an environment is 1Cat-vLLM, which has a package name of its own."""
    return any(
        package.startswith("1cat_vllm-")
        for library in probe.names(f"{prefix}/lib")
        if library.startswith("python")
        for package in probe.names(f"{prefix}/lib/{library}/site-packages")
    )
