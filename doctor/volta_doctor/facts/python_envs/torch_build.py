"""The torch of an environment: version, CUDA, device code, cuDNN. It is never imported."""

import re
from typing import NamedTuple

from volta_doctor.facts import elf, fatbin
from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.facts.python_envs.distributions import CondaPackage, Distribution
from volta_doctor.facts.python_envs.layout import Layout
from volta_doctor.probe import CannotLook, Probe

# Where device code lies: one library since torch 1.13, several before.
_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_cu.so", "libtorch_cuda_cpp.so")
_CUDNN = re.compile(r"libcudnn\.so\.(\d+(?:\.\d+)*)$")


class TorchBuild(NamedTuple):
    """One installed torch, or none: then `version` is None.

    `cuda` is None in a CPU build. `installed` is when, in seconds since the epoch. `code` is what
    `library` carries, None for `problem`, where it could not be read.
    """

    version: str | None = None
    directory: str = ""
    cuda: str | None = None
    hip: str | None = None
    installed: int = 0
    library: str = ""
    code: DeviceCode | None = None
    problem: str = ""


class Cudnn(NamedTuple):
    """A cuDNN: only its major version where nothing tells more."""

    version: str
    source: str


def parse_torch(version_py: str) -> tuple[str | None, str | None]:
    """Return version and CUDA version of torch/version.py."""
    return _assigned(version_py, "__version__"), _assigned(version_py, "cuda")


def read_torch(probe: Probe, layout: Layout) -> TorchBuild | None:
    """Return the torch that the environment imports, None where there is none."""
    for site in layout.sites:
        directory = f"{site}/torch"
        text = probe.text_or_none(f"{directory}/version.py")
        version, cuda = parse_torch(text or "")
        if text is None or version is None:
            continue
        places = [f"{directory}/lib", f"{layout.prefix}/lib"]
        library, code, problem = _read_code(probe, places) if cuda else ("", None, "")
        return TorchBuild(
            version=version,
            directory=directory,
            cuda=cuda,
            hip=_assigned(text, "hip"),
            installed=_installed(probe, site, directory),
            library=library,
            code=code,
            problem=problem,
        )
    return None


def find_cudnn(
    probe: Probe,
    distributions: list[Distribution],
    conda: list[CondaPackage],
    torch: TorchBuild,
) -> Cudnn | None:
    """Return the cuDNN that the environment brings along."""
    for distribution in distributions:
        if re.fullmatch(r"nvidia[-_]cudnn(?:[-_]cu\d+)?", distribution.name.lower()):
            return Cudnn(distribution.version, distribution.name)
    for package in conda:
        if package.name == "cudnn":
            return Cudnn(package.version, f"{package.name} of conda")
    directory = f"{torch.directory}/lib"
    found = [name for name in probe.names(directory) if _CUDNN.match(name)]
    if not torch.version or not found:
        return None
    path = f"{directory}/{max(found, key=len)}"
    match = _CUDNN.search(probe.resolve(path)) or _CUDNN.search(path)
    return Cudnn(match[1] if match else "", path)


def _assigned(version_py: str, name: str) -> str | None:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"](.+?)['\"]", version_py, re.MULTILINE)
    return match[1] if match else None


def _installed(probe: Probe, site: str, directory: str) -> int:
    """Return when torch was installed: RECORD is written then, other files may keep older dates."""
    records = [
        probe.stat(f"{site}/{name}/RECORD")
        for name in probe.names(site)
        if re.fullmatch(r"torch-[^-]+\.dist-info", name)
    ]
    status = next(filter(None, records), None) or probe.stat(f"{directory}/version.py")
    return int(status.st_mtime) if status else 0


def _read_code(probe: Probe, directories: list[str]) -> tuple[str, DeviceCode | None, str]:
    """Return the library with most device code in it, its code, and what went wrong."""
    for directory in directories:
        for name in _LIBRARIES:
            path = f"{directory}/{name}"
            if not probe.exists(path):
                continue
            try:
                with probe.open(path) as file:
                    code = fatbin.device_code(file, elf.sections(file))
            except CannotLook as reason:
                return path, None, str(reason)
            except elf.NotRead as reason:
                return path, None, f"{path} {reason}"
            if code:
                return path, code, f"{path} {code.problem}" if code.problem else ""
    return "", None, f"{directories[0]} holds no library with device code"
