"""What else has to change where torch does: what pins it, and what is compiled against it."""

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from volta_doctor.arch import rebuild
from volta_doctor.arch.model import CodeFile
from volta_doctor.catalog import compat
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.facts.python_envs.distributions import Distribution


def pinned(env: PythonEnv) -> list[str]:
    """Return the packages that refuse the torch of the catalogue; pip finds other versions."""
    return sorted(d.name for d in env.distributions if d.name != "torch" and _refuses(d))


def compiled(files: list[CodeFile], env: PythonEnv, owners: rebuild.Owners) -> dict[str, CodeFile]:
    """Return, by package or file, what links torch and allows any version of it.

    It was built for the torch that is there.
    """
    settled = {canonicalize_name(name) for name in ("torch", *pinned(env))}
    found: dict[str, CodeFile] = {}
    for file in filter(rebuild.needs_torch, files):
        owner = owners.of(file.path)
        name = owner.name if owner else file.path.rsplit("/", 1)[-1]
        if not (canonicalize_name(name) in settled or "/torch/lib/" in file.path):
            found.setdefault(name, file)
    return found


def _refuses(package: Distribution) -> bool:
    version = compat().torch_by_profile["v100"].version
    for text in package.requires:
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            continue
        if needed.name == "torch" and not needed.specifier.contains(version):
            return needed.marker is None or needed.marker.evaluate({"extra": ""})
    return False
