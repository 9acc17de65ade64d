"""The `toolchain` section: every nvcc and ptxas that a build may take, and what steers it."""

import msgspec

from volta_doctor.facts import cpu_list, python_envs
from volta_doctor.facts.python_envs import SHELL, find_servers, identity
from volta_doctor.facts.python_envs.layout import container_root
from volta_doctor.facts.toolchain import host_compiler, parts
from volta_doctor.facts.toolchain.cuda_tools import Tool, Tools
from volta_doctor.facts.toolchain.host_compiler import HostCompiler
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
    "CC",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # systemd's for a service
_CUDA = "/usr/local/cuda"
_DEBIAN = "/usr/lib/nvidia-cuda-toolkit"
_CPUS = "/sys/devices/system/cpu/online"


class Compiler(Tool, frozen=True, kw_only=True, omit_defaults=True):
    """An nvcc; `apart` says that some of its parts are found by PATH alone (Debian's are)."""

    apart: bool = False


class Build(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a build would take that a server, or this shell, starts.

    `env` is the prefix of its Python environment, `variables` those of VARIABLES that are set.
    `nvcc` is the one that torch would run, found by `nvcc_by`; `beside` are the ptxas, cicc and
    nvlink that this one would run, and `fitting` the directories of PATH with those of its own
    release where one of another comes first. `gcc` compiles the host's part. `problem` says why
    its environment is not known.
    """

    name: str
    engine: str = ""
    unit: str | None = None
    env: str | None = None
    variables: dict[str, str]
    nvcc: Tool | None = None
    nvcc_by: str = ""
    beside: list[Tool] = []
    fitting: list[str] = []
    gcc: HostCompiler | None = None
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

    `gccs` are the host compilers beside the distribution's own, `cpus` counts those that compile.
    `problem` is why a server may have been missed.
    """

    compilers: list[Compiler]
    builds: list[Build]
    triton: list[TritonPtxas]
    gccs: list[HostCompiler] = []
    cpus: int | None = None
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
    paths = (f"{directory}/{name}" for directory in search_path(env, root))
    return next((path for path in paths if probe.exists(path)), None)


def search_path(env: dict[str, str], root: str = "") -> list[str]:
    """Return the directories of an environment's PATH, each once."""
    directories = env.get("PATH", _PATH).split(":")
    return list(dict.fromkeys(root + d.rstrip("/") for d in directories if d.startswith("/")))


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
        gccs=host_compiler.others(probe),
        cpus=_cpus(probe),
        problem=problem,
    )


def _build(probe: Probe, tools: Tools, build: Build, env: dict[str, str] | None) -> Build:
    if env is None:
        return msgspec.structs.replace(build, problem=build.problem or "its environment is hidden")
    root = container_root(build.env or "")
    search = search_path(env, root)
    path, by = find_nvcc(probe, env, root)
    nvcc = tools.read(path) if path else None
    build = msgspec.structs.replace(
        build,
        variables={name: env[name] for name in VARIABLES if name in env},
        nvcc=nvcc,
        nvcc_by=by,
    )
    if nvcc is None or nvcc.release is None:
        return build
    beside = parts.beside(probe, tools, nvcc, search)
    wrong = [tool for tool in beside if tool.release != nvcc.release]
    return msgspec.structs.replace(
        build,
        beside=beside,
        fitting=parts.fitting(probe, tools, nvcc, wrong, search),
        gcc=host_compiler.find(probe, env, nvcc.real, search, root),
    )


def _cpus(probe: Probe) -> int | None:
    text = probe.text_or_none(_CPUS)
    return len(cpu_list.parse(text)) if text else None


def _compilers(probe: Probe, tools: Tools) -> list[Compiler]:
    """Return every nvcc of the host, each program once."""
    places = [
        f"{parent}/{name}"
        for parent in ("/usr/local", "/opt")
        for name in probe.names(parent)
        if name.startswith("cuda-")
    ]
    places += [_CUDA, _DEBIAN, "/opt/cuda"]
    directories = [*(f"{place}/bin" for place in places), *search_path(probe.env)]
    paths = [f"{directory}/nvcc" for directory in directories]
    found: dict[object, Compiler] = {}
    for tool in (tools.read(path) for path in paths if probe.exists(path)):
        apart = tool.release is not None and not parts.whole(probe, tool)
        compiler = Compiler(**msgspec.structs.asdict(tool), apart=apart)
        found.setdefault(identity(probe, tool.real), compiler)
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
                if not probe.exists(path):  # Triton goes on with its own (triton/knobs.py)
                    path, by = bundled, f"Triton's own (there is no {path})"
                tool = tools.read(path)
                found.append(
                    TritonPtxas(name=build.name, env=env.prefix, tool=tool, by=by, unit=build.unit)
                )
    return found
