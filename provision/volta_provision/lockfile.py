"""The lock: an intent resolved to exact versions and hashes, as one YAML file."""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement

from volta_provision.errors import StackError
from volta_provision.stack import Model, Profile, Serve, Stack, read_models

PINS = Path(__file__).with_name("pins")

# Requirement files a profile's environment is made of, the torch index of each, and what the
# server may take of the host's memory: `high` of it unhindered, more than `max` never.
PROFILES: dict[Profile, dict[str, Any]] = {
    "cpu": {
        "torch": "torch-cpu.txt",
        "packages": "cpu.txt",
        "torch_index": "https://download.pytorch.org/whl/cpu",
        "kernels": {"cuda": False, "archs": []},
        "disk_gib": 3,
        "memory_gib": {"high": 6, "max": 8},
    },
    "v100": {
        "torch": None,
        "packages": "v100.txt",
        "torch_index": None,
        "kernels": {"cuda": True, "archs": ["sm_70"]},
        "disk_gib": 16,
        "memory_gib": {"high": 24, "max": 32},
    },
}


class Package(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pinned distribution; `marker` says on which Pythons it is installed (PEP 508)."""

    name: str
    version: str
    sha256: list[str]
    marker: str | None = None


class Lock(msgspec.Struct, frozen=True):
    """Everything that a release is made of."""

    schema: int
    version: str
    source: str
    profile: Profile
    engine: str
    model: Model
    serve: Serve
    kernels: dict[str, Any]
    memory_gib: dict[str, int]
    packages: list[Package]
    build: list[Package]

    def encode(self) -> bytes:
        """Return the lock as YAML; equal locks give equal bytes."""
        return msgspec.yaml.encode(self)


def make_lock(stack: Stack, profile: Profile, source: str) -> Lock:
    """Resolve `stack` for `profile`; `source` is the digest of the project's source."""
    row = PROFILES[profile]
    return Lock(
        schema=1,
        version=version("volta-stack"),
        source=source,
        profile=profile,
        engine=stack.engine,
        model=read_models()[stack.model],
        serve=stack.serve,
        kernels=row["kernels"],
        memory_gib=row["memory_gib"],
        packages=[package for name in requirement_files(profile) for package in read_pins(name)],
        build=read_pins("build.txt"),
    )


def digest(lock: bytes) -> str:
    """Return `sha256:<hex>` of a lock file's bytes; its first 12 digits name the release."""
    return f"sha256:{hashlib.sha256(lock).hexdigest()}"


def requirement_files(profile: Profile) -> list[str]:
    """Return the names of the pinned requirement files of a profile, torch first."""
    row = PROFILES[profile]
    return [name for name in (row["torch"], row["packages"]) if name]


def read_pins(name: str) -> list[Package]:
    """Parse a hash-pinned requirements file; raises StackError for a line without pin or hash."""
    path = PINS / name
    text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE)
    packages = []
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.strip():
            continue
        requirement = Requirement(entry.split("--hash")[0].strip())
        pins = [spec.version for spec in requirement.specifier if spec.operator == "=="]
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        if len(pins) != 1 or not hashes:
            raise StackError(f"{path}: {requirement.name}: needs one == pin and its sha256")
        marker = str(requirement.marker) if requirement.marker else None
        packages.append(Package(requirement.name, pins[0], hashes, marker))
    return packages
