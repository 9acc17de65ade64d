"""What else has to change where torch does: what pins it, and what is compiled against it."""

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from volta_doctor.arch import rebuild
from volta_doctor.arch.model import CodeFile
from volta_doctor.catalog import compat
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.facts.python_envs.distributions import Distribution
from volta_doctor.findings import Finding

# PyTorch releases it with torch's own number, for that torch alone; its metadata does not say so.
_IN_STEP = ("torchaudio",)


def pinned(env: PythonEnv) -> list[str]:
    """Return what refuses the torch of the catalogue, as pip is to be asked for it."""
    version = compat().torch
    others = [d for d in env.distributions if d.name != "torch"]
    refusing = sorted(d.name for d in others if d.name not in _IN_STEP and _refuses(d))
    return [*refusing, *(f"{d.name}=={version}" for d in others if d.name in _IN_STEP)]


def in_its_way(finding: Finding, env: PythonEnv) -> list[str]:
    """Return what pip would not replace: NVIDIA's packages that a finding names, and their files.

    And a torch of the same number: to pip, 2.10.0+cu130 is a 2.10.0.
    """
    found = [name for name in _packages(finding) if _of_nvidia(name)]
    pin = compat().torch
    return [*found, *(["torch"] if (env.torch or "").split("+")[0] == pin else [])]


def of_another_cuda(finding: Finding, env: PythonEnv) -> list[str]:
    """Return what else is built for the CUDA of that torch, a sentence each."""
    settled = {name.split("==")[0] for name in ("torch", *pinned(env))}
    others = [name for name in _packages(finding) if not _of_nvidia(name) and name not in settled]
    return [f"{name} is built for CUDA 13: install its build for CUDA 12" for name in others]


def _packages(finding: Finding) -> list[str]:
    of_packages = (seen for seen in finding.evidence if seen.source.startswith("dist-info"))
    return list(dict.fromkeys(seen.text.split()[0] for seen in of_packages))


def _of_nvidia(name: str) -> bool:
    return name.startswith("nvidia-") or canonicalize_name(name) in compat().cuda_13.names


def compiled(files: list[CodeFile], env: PythonEnv, owners: rebuild.Owners) -> dict[str, CodeFile]:
    """Return, by package or file, what links torch and allows any version of it.

    It was built for the torch that is there.
    """
    settled = {canonicalize_name(name.split("==")[0]) for name in ("torch", *pinned(env))}
    found: dict[str, CodeFile] = {}
    for file in filter(rebuild.needs_torch, files):
        owner = owners.of(file.path)
        name = owner.name if owner else file.path.rsplit("/", 1)[-1]
        if not (canonicalize_name(name) in settled or "/torch/lib/" in file.path):
            found.setdefault(name, file)
    return found


def _refuses(package: Distribution) -> bool:
    version = compat().torch
    for text in package.requires:
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            continue
        if needed.name == "torch" and not needed.specifier.contains(version):
            return needed.marker is None or needed.marker.evaluate({"extra": ""})
    return False
