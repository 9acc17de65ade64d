"""The `toolchain` section: every nvcc and ptxas that a build may take, and what steers it."""

import posixpath

import msgspec

from volta_doctor.facts import python_envs
from volta_doctor.facts.python_envs import SHELL, find_servers, identity
from volta_doctor.facts.python_envs.layout import container_root
from volta_doctor.facts.toolchain.cuda_tools import Tool, Tools
from volta_doctor.probe import CannotLook, Probe

# What steers a build of an extension, and Triton's.
VARIABLES = (
    "TORCH_CUDA_ARCH_LIST",
    "CMAKE_CUDA_ARCHITECTURES",
    "CUDAARCHS",
    "MAX_JOBS",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDACXX",
    "PYTORCH_NVCC",
    "TRITON_PTXAS_PATH",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # systemd's for a service
_CUDA = "/usr/local/cuda"
_TOOLKITS = ("/usr/lib/nvidia-cuda-toolkit", "/opt/cuda")


class Build(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a build would take that a server, or this shell, starts.

    `env` is the prefix of its Python environment, `variables` those of VARIABLES that are set.
    `nvcc` is the one that torch would run, found by `nvcc_by`; `beside` are the ptxas and cicc
    that this one would run. `problem` says why its environment is not known.
    """

    name: str
    engine: str = ""
    unit: str | None = None
    env: str | None = None
    variables: dict[str, str]
    nvcc: Tool | None = None
    nvcc_by: str = ""
    beside: list[Tool] = []
    problem: str = ""


class TritonPtxas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ptxas of an environment's Triton, as a server runs it; `by` says what chose it."""

    name: str
    env: str
    tool: Tool
    by: str
    unit: str | None = None


class ToolchainFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every nvcc of the host, what each build would take, and each Triton's ptxas.

    `problem` is why a server may have been missed.
    """

    compilers: list[Tool]
    builds: list[Build]
    triton: list[TritonPtxas]
    problem: str = ""


def find_nvcc(probe: Probe, env: dict[str, str], root: str = "") -> tuple[str | None, str]:
    """Return the nvcc that torch.utils.cpp_extension runs in an environment, and what chose it."""
    if given := env.get("PYTORCH_NVCC"):
        return root + given, "PYTORCH_NVCC"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if given := env.get(name):
            return f"{root}{given}/bin/nvcc", name
    if path := on_path(probe, "nvcc", env, root):
        return path, "PATH"
    path = f"{root}{_CUDA}/bin/nvcc"
    return (path, _CUDA) if probe.exists(path) else (None, "")


def on_path(probe: Probe, name: str, env: dict[str, str], root: str = "") -> str | None:
    """Return the first file of a name in the directories of an environment's PATH."""
    directories = env.get("PATH", _PATH).split(":")
    paths = (f"{root}{directory}/{name}" for directory in directories if directory.startswith("/"))
    return next((path for path in paths if probe.exists(path)), None)


def collect(probe: Probe) -> ToolchainFacts:
    """Look where this shell's and the servers' builds look."""
    tools = Tools(probe)
    servers, problem = find_servers(probe)
    builds = [_build(probe, tools, Build(name=SHELL, variables={}), probe.env)]
    builds += [
        _build(
            probe,
            tools,
            Build(
                name=s.name,
                engine=s.engine,
                unit=s.unit,
                env=s.prefix,
                variables={},
                problem=s.env_problem,
            ),
            s.env,
        )
        for s in servers
        if s.prefix
    ]
    return ToolchainFacts(
        compilers=_compilers(probe, tools),
        builds=builds,
        triton=_tritons(probe, tools, builds),
        problem=problem,
    )


def _build(probe: Probe, tools: Tools, build: Build, env: dict[str, str] | None) -> Build:
    if env is None:
        return msgspec.structs.replace(build, problem=build.problem or "its environment is hidden")
    root = container_root(build.env or "")
    path, by = find_nvcc(probe, env, root)
    nvcc = tools.read(path) if path else None
    return msgspec.structs.replace(
        build,
        variables={name: env[name] for name in VARIABLES if name in env},
        nvcc=nvcc,
        nvcc_by=by,
        beside=_beside(probe, tools, nvcc, env, root) if nvcc and nvcc.release else [],
    )


def _beside(probe: Probe, tools: Tools, nvcc: Tool, env: dict[str, str], root: str) -> list[Tool]:
    """Return the ptxas and cicc that an nvcc runs: its own toolkit's, else those on PATH."""
    directory = posixpath.dirname(nvcc.real)
    places = {
        "ptxas": [f"{directory}/ptxas"],
        "cicc": [f"{posixpath.dirname(directory)}/nvvm/bin/cicc", f"{directory}/cicc"],
    }
    found = []
    for name, paths in places.items():
        own = next((path for path in paths if probe.exists(path)), None)
        if path := own or on_path(probe, name, env, root):
            found.append(tools.read(path))
    return found


def _compilers(probe: Probe, tools: Tools) -> list[Tool]:
    """Return every nvcc of the host, each program once."""
    places = [f"/usr/local/{n}" for n in probe.names("/usr/local") if n.startswith("cuda-")]
    directories = [f"{place}/bin" for place in (*places, _CUDA, *_TOOLKITS)]
    directories += [d for d in probe.env.get("PATH", _PATH).split(":") if d.startswith("/")]
    paths = [f"{directory}/nvcc" for directory in directories]
    found: dict[object, Tool] = {}
    for tool in (tools.read(path) for path in paths if probe.exists(path)):
        found.setdefault(identity(probe, tool.real), tool)
    return list(found.values())


def _tritons(probe: Probe, tools: Tools, builds: list[Build]) -> list[TritonPtxas]:
    """Return the ptxas of each environment's Triton, for each server that runs there."""
    try:
        envs = probe.once(python_envs.find).envs
    except CannotLook:
        return []  # the checks that ask for it need that section as well
    found = []
    for env in envs:
        sites = (f"{site}/triton/backends/nvidia/bin/ptxas" for site in env.sites)
        bundled = next((path for path in sites if probe.exists(path)), None)
        users = [build for build in builds if build.name in env.used_by]
        for build in users or [Build(name=env.prefix, variables={})]:
            given = build.variables.get("TRITON_PTXAS_PATH")
            path = container_root(env.prefix) + given if given else bundled
            if path and bundled:
                by = "TRITON_PTXAS_PATH" if given else "Triton's own"
                tool = tools.read(path)
                found.append(
                    TritonPtxas(name=build.name, env=env.prefix, tool=tool, by=by, unit=build.unit)
                )
    return found
