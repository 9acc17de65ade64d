"""How to build a file anew, with machine code for a card."""

import re
import shlex

from packaging.utils import canonicalize_name

from volta_doctor.arch.model import CodeFile
from volta_doctor.arch.rules import Card
from volta_doctor.catalog import compat
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.facts.python_envs.distributions import Distribution
from volta_doctor.probe import CannotLook, Probe

# pip takes neither what is installed nor what it built before
_ANEW = "--force-reinstall --no-deps --no-cache-dir --no-build-isolation"
_CODE = re.compile(r"\.(?:so|a|o|ptx|cubin|fatbin|dll|pyd)\b")
_RECORD_BYTES = 1 << 26
_CACHE = re.compile(r"(.*/torch_extensions/.+)/[^/]+$")


class Owners:
    """Which distribution of an environment a file belongs to, as the RECORD files say."""

    def __init__(self, probe: Probe, env: PythonEnv | None) -> None:
        self._probe, self._env = probe, env
        distributions = env.distributions if env else []
        self._known = {canonicalize_name(d.name): d for d in distributions}
        self._found: dict[str, dict[str, str]] = {}

    @property
    def pip(self) -> str:
        """The pip of the environment."""
        if self._env is None or self._env.kind == "wheel":
            return "pip"
        return f"{shlex.quote(f'{self._env.prefix}/bin/python')} -m pip"

    def of(self, path: str) -> Distribution | None:
        """Return the owner of a file, None where none tells."""
        if self._env is None:
            return None
        if self._env.kind == "wheel":
            own = self._env.distributions[0]
            return own if own.name and own.version else None
        for site in self._env.sites:
            if path.startswith(f"{site}/"):
                if site not in self._found:
                    self._found[site] = self._read(site)
                names = self._found[site]
                return self._known.get(canonicalize_name(names.get(path[len(site) + 1 :], "")))
        return None

    def _read(self, site: str) -> dict[str, str]:
        """Return which distribution each file with code in a directory came with."""
        owners: dict[str, str] = {}
        for info in self._probe.names(site):
            if not info.endswith(".dist-info"):
                continue
            try:
                with self._probe.open(f"{site}/{info}/RECORD") as file:
                    text = file.read(_RECORD_BYTES).decode(errors="replace")
            except CannotLook:
                continue
            for entry in text.splitlines():
                path = entry.split(",", 1)[0].strip('"')
                if _CODE.search(path):
                    owners[path] = info.split("-", 1)[0]
        return owners


def is_nvidias(file: CodeFile, owners: Owners) -> bool:
    """Say whether NVIDIA alone can build a file."""
    owner = owners.of(file.path)
    own = owner is not None and canonicalize_name(owner.name).startswith("nvidia-")
    return own or compat().is_nvidias(file.path)


def needs_torch(file: CodeFile) -> bool:
    """Say whether a file is an extension of torch."""
    return any(re.match(r"lib(?:torch|c10)", name) for name in file.needs)


def line(file: CodeFile, card: Card, owners: Owners) -> str:
    """Return the line that builds a file anew, empty where there is none, as for NVIDIA's own."""
    owner = owners.of(file.path)
    own = canonicalize_name(owner.name) if owner else ""
    if own == "torch":
        pin = compat().torch
        return f"{owners.pip} install torch=={pin}" if card.is_volta else ""
    if is_nvidias(file, owners):
        return ""
    torch_list = f"TORCH_CUDA_ARCH_LIST={card.capability}"
    cmake = f"-DCMAKE_CUDA_ARCHITECTURES={card.arch}"
    if owner:
        setting = torch_list if needs_torch(file) else f"CMAKE_ARGS={cmake}"
        # A source on PyPI has the version without what a build adds to it: 0.3.2+cu128.
        name, version = shlex.quote(own), shlex.quote(owner.version.split("+")[0])
        return f"{setting} {owners.pip} install {_ANEW} --no-binary {name} {name}=={version}"
    if cache := _CACHE.match(file.path):
        old, new = shlex.quote(cache[1]), shlex.quote(f"{cache[1]}.old")
        return f"mv {old} {new}  # torch builds it at the next start"
    if file.kind == "ptx":
        return f"nvcc -ptx -arch=compute_{card.arch} ..."
    if file.kind in ("cubin", "fatbin"):
        return f"nvcc -{file.kind} -arch=sm_{card.arch} ..."
    if file.path.endswith(".o") or ".a!" in file.path:
        return f"nvcc -gencode arch=compute_{card.arch},code=sm_{card.arch} ..."
    if needs_torch(file):
        return f"{torch_list} pip install --no-build-isolation ."
    return f"cmake {cmake} ..."
