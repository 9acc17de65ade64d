"""The `python_envs` section: every Python environment that a server runs in.

Everything is read from files: torch is never imported.
"""

import re

import msgspec

from volta_doctor.facts.release import current_release
from volta_doctor.probe import CannotLook, Probe


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An installed distribution as its dist-info describes it.

    `sha256` is that of the archive it came from, which pip records only for direct URLs.
    """

    name: str
    version: str
    requires: list[str] = []
    sha256: str | None = None


class PythonEnv(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A venv; torch's version and CUDA (None in a CPU build) are None where it is not installed."""

    prefix: str
    python: str
    distributions: list[Distribution]
    torch: str | None = None
    torch_cuda: str | None = None


class PythonEnvsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The environments, each once, that of the current release first."""

    envs: list[PythonEnv] = []


def parse_python_version(pyvenv_cfg: str) -> str | None:
    """Return the interpreter version of a pyvenv.cfg (venv and virtualenv name it differently)."""
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", pyvenv_cfg, re.MULTILINE)
    return match[1] if match else None


def parse_metadata(text: str, direct_url: str | None = None) -> Distribution:
    """Return name, version and requirements of a METADATA file's header."""
    header = text.split("\n\n", 1)[0]
    fields = [line.split(": ", 1) for line in header.splitlines() if ": " in line]
    first = {key.lower(): value for key, value in reversed(fields)}
    sha256 = re.search(r'"sha256(?:"\s*:\s*"|=)([0-9a-f]{64})', direct_url or "")
    return Distribution(
        name=first.get("name", ""),
        version=first.get("version", ""),
        requires=[value for key, value in fields if key.lower() == "requires-dist"],
        sha256=sha256[1] if sha256 else None,
    )


def parse_torch(version_py: str) -> tuple[str | None, str | None]:
    """Return version and CUDA version of torch/version.py."""
    version = re.search(r"^__version__\s*=\s*['\"](.+?)['\"]", version_py, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"](.+?)['\"]", version_py, re.MULTILINE)
    return version[1] if version else None, cuda[1] if cuda else None


def read_venv(probe: Probe, prefix: str) -> PythonEnv:
    """Read a venv. Raises CannotLook naming what is missing in it."""
    python = parse_python_version(probe.text(f"{prefix}/pyvenv.cfg"))
    if python is None:
        raise CannotLook(f"{prefix}/pyvenv.cfg names no Python version")
    libraries = [name for name in probe.names(f"{prefix}/lib") if name.startswith("python")]
    if len(libraries) != 1:
        raise CannotLook(f"{prefix}/lib holds {len(libraries)} python directories, not one")
    site = f"{prefix}/lib/{libraries[0]}/site-packages"
    infos = [name for name in probe.names(site) if name.endswith(".dist-info")]
    distributions = [
        parse_metadata(
            probe.text(f"{site}/{info}/METADATA"),
            probe.text_or_none(f"{site}/{info}/direct_url.json"),
        )
        for info in infos
        if probe.exists(f"{site}/{info}/METADATA")
    ]
    torch, torch_cuda = parse_torch(probe.text_or_none(f"{site}/torch/version.py") or "")
    return PythonEnv(
        prefix=prefix,
        python=python,
        distributions=distributions,
        torch=torch,
        torch_cuda=torch_cuda,
    )


def collect(probe: Probe) -> PythonEnvsFacts:
    """Read the venv of the current release."""
    return PythonEnvsFacts(envs=[read_venv(probe, f"{current_release(probe)}/venv")])
