"""The `python_envs` section: every Python environment that a server runs in.

Everything is read from files: torch is never imported.
"""

import re

import msgspec

from volta_doctor.facts import elf, serve
from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.facts.python_envs.distributions import (
    CondaPackage,
    Distribution,
    read_conda,
    read_distributions,
)
from volta_doctor.facts.python_envs.layout import container_root, find_layout
from volta_doctor.facts.python_envs.loader import CudaLibrary, LibrarySearch, search
from volta_doctor.facts.python_envs.torch_build import TorchBuild, find_cudnn, read_torch
from volta_doctor.facts.release import current_release, install_root
from volta_doctor.facts.serve import Server
from volta_doctor.probe import CannotLook, NotHere, Probe

RELEASE = "current release"
SHELL = "this shell"
_GLIBC = re.compile(rb"GNU C Library .{0,80}?release version (\d+\.\d+)")
_LIBC = (
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/powerpc64le-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
)
_RODATA_BYTES = 1 << 24


class PythonEnv(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One environment: a venv, a conda environment or a system's Python.

    `prefix` names it, or the server where that is not known. `tag` is what its compiled modules
    are tagged with (cp311). `used_by` names the servers that run in it. `sites` are the directories
    that it imports from. `cudnn` is a version, or a part of one, found in `cudnn_source`.
    `runtimes` are the CUDA runtimes that its wheels bring along. `glibc` is the C library's
    release. `problem` says why nothing more is known of it.

    `torch` is a version, None where there is none; `torch_cuda` is None in a CPU build.
    `torch_time` is when it was installed, in seconds since the epoch. `torch_code` is the device
    code in `torch_library`, None for `torch_problem`, where that could not be read.
    """

    prefix: str
    kind: str = ""
    python: str = ""
    tag: str = ""
    used_by: list[str]
    sites: list[str] = []
    distributions: list[Distribution]
    conda: list[CondaPackage] = []
    torch: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    torch_time: int = 0
    torch_library: str = ""
    torch_code: DeviceCode | None = None
    torch_problem: str = ""
    cudnn: str | None = None
    cudnn_source: str = ""
    runtimes: list[CudaLibrary] = []
    glibc: str | None = None
    problem: str = ""


class PythonEnvsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The environments, each once, that of the current release first.

    `searches` tells which CUDA libraries each server loads, Python program or not.
    `problem` is why an environment may have been missed.
    """

    envs: list[PythonEnv]
    searches: list[LibrarySearch]
    problem: str = ""


def find(probe: Probe) -> PythonEnvsFacts:
    """Find the environments; other collectors call it through `probe.once(find)`."""
    servers, problem = find_servers(probe)
    release, reason = _find_release(probe)
    if problem and not servers and not release:
        raise CannotLook(f"{problem}; {reason}")
    places = {identity(probe, release): release} if release else {}
    users: dict[object, list[Server]] = {}
    for server in servers:
        if server.prefix:
            place = identity(probe, server.prefix)
            places.setdefault(place, server.prefix)
            users.setdefault(place, []).append(server)
    envs = []
    for place, prefix in places.items():
        used_by = [RELEASE] * (prefix == release) + [s.name for s in users.get(place, [])]
        known = reason if prefix == release else ""
        envs.append(read_env(probe, prefix, users.get(place, []), used_by, known))
    envs += [
        PythonEnv(prefix=s.name, used_by=[s.name], distributions=[], problem=s.python_problem)
        for s in servers
        if s.python_problem
    ]
    searches = [search(probe, server.name, server.env, root_of(server)) for server in servers]
    return PythonEnvsFacts(
        envs=envs, searches=searches or [search(probe, SHELL, probe.env)], problem=problem
    )


def _find_release(probe: Probe) -> tuple[str | None, str]:
    """Return the release's venv, or None where there is no release, and why it cannot be read."""
    try:
        return f"{current_release(probe)}/venv", ""
    except NotHere as reason:
        return None, str(reason)
    except CannotLook as reason:
        return f"{install_root(probe)}/current/venv", str(reason)


def identity(probe: Probe, directory: str) -> object:
    """Return what tells a directory from others, whatever links lead to it."""
    try:
        status = probe.stat(directory)
    except CannotLook:
        status = None
    return (status.st_dev, status.st_ino) if status else directory


def root_of(server: Server) -> str:
    """Return what stands before the paths of a server: /proc/PID/root in a container."""
    return f"/proc/{server.pids[0]}/root" if server.container and server.pids else ""


def find_servers(probe: Probe) -> tuple[list[Server], str]:
    """Return the servers, and why some may be missing."""
    try:
        found = probe.once(serve.find)
    except CannotLook as reason:
        return [], str(reason)
    return found.servers, found.problem


def read_env(
    probe: Probe, prefix: str, users: list[Server], used_by: list[str], problem: str = ""
) -> PythonEnv:
    """Read one environment; what stands in the way is its `problem`, unless one is known."""
    try:
        if problem:
            raise CannotLook(problem)
        return _read(probe, prefix, users, used_by)
    except CannotLook as reason:
        return PythonEnv(prefix=prefix, used_by=used_by, distributions=[], problem=str(reason))


def read_glibc(probe: Probe, root: str = "") -> str | None:
    """Return the release of the C library under `root`, as it names itself."""
    for path in _LIBC:
        try:
            with probe.open(root + path) as file:
                rodata = next(s for s in elf.sections(file) if s.name == ".rodata")
                text = elf.read_at(file, rodata.offset, min(rodata.size, _RODATA_BYTES))
        except (CannotLook, elf.NotRead, StopIteration):
            continue
        if match := _GLIBC.search(text):
            return match[1].decode()
    return None


def _read(probe: Probe, prefix: str, users: list[Server], used_by: list[str]) -> PythonEnv:
    homes = [s.home for s in users if s.home and "PYTHONNOUSERSITE" not in (s.env or {})]
    layout = find_layout(
        probe,
        prefix,
        next((server.python for server in users if server.python), None),
        f"{homes[0]}/.local" if homes else None,
    )
    distributions = read_distributions(probe, layout.sites)
    conda = read_conda(probe, prefix) if layout.kind == "conda" else []
    torch = read_torch(probe, layout) or TorchBuild()
    cudnn = find_cudnn(probe, distributions, conda, torch)
    return PythonEnv(
        prefix=prefix,
        kind=layout.kind,
        python=layout.python,
        tag=layout.tag,
        used_by=used_by,
        sites=layout.sites,
        distributions=distributions,
        conda=conda,
        torch=torch.version,
        torch_cuda=torch.cuda,
        torch_hip=torch.hip,
        torch_time=torch.installed,
        torch_library=torch.library,
        torch_code=torch.code,
        torch_problem=torch.problem,
        cudnn=cudnn.version if cudnn else None,
        cudnn_source=cudnn.source if cudnn else "",
        runtimes=[library for site in layout.sites for library in _runtimes(probe, site)],
        glibc=read_glibc(probe, container_root(prefix)),
    )


def _runtimes(probe: Probe, site: str) -> list[CudaLibrary]:
    """Return the CUDA runtimes that wheels bring along."""
    directories = [f"{site}/nvidia/{name}/lib" for name in probe.names(f"{site}/nvidia")]
    return [
        CudaLibrary(name=name, path=f"{directory}/{name}", real=f"{directory}/{name}", via="wheel")
        for directory in [*directories, f"{site}/torch/lib"]
        for name in probe.names(directory)
        if re.fullmatch(r"libcudart\.so\.\d+(?:\.\d)?", name)
    ]


def collect(probe: Probe) -> PythonEnvsFacts:
    """Read the environments."""
    return probe.once(find)
