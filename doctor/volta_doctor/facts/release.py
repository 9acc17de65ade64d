"""The `release` section: what is installed under the install root, against its lock file."""

import hashlib
from typing import TYPE_CHECKING

import msgspec

from volta_doctor.probe import CannotLook, NotHere, Probe

if TYPE_CHECKING:
    from volta_doctor.facts.python_envs.distributions import Distribution

_OF_ROOT = "/opt/volta"
_OF_USER = ".local/share/volta"
PROJECT = "volta-stack"
# What `python -m venv` itself puts there (setuptools up to Python 3.11); no lock names it.
FROM_VENV = frozenset({"pip", "setuptools"})


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """release.json: written last, so that its presence means a complete release."""

    schema: int
    digest: str
    profile: str
    manager: str
    unit: str
    url: str
    model: str
    model_dir: str
    python: str
    created: str


class LockedPackage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One package of the lock file; `marker` (PEP 508) says on which interpreters it applies."""

    name: str
    version: str
    sha256: list[str] = []
    marker: str | None = None


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """The part of stack.lock.yaml that an installed release can be held against."""

    schema: int
    profile: str
    version: str
    packages: list[LockedPackage]


class Installed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An installed distribution under its normalised name."""

    name: str
    version: str
    sha256: str | None = None


class ReleaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The current release.

    `lock_digest` is computed anew from the lock file. `locked` holds the packages that apply to
    the release's interpreter, the project itself among them. `conflicts` are unmet requirements
    among the installed distributions, in the words of pip check.
    """

    directory: str
    manifest: Manifest
    lock_digest: str
    locked: list[LockedPackage]
    installed: list[Installed]
    conflicts: list[str]


def install_root(probe: Probe) -> str:
    """Return the install root: $VOLTA_ROOT, else the first of the usual two with a release in it.

    A root user's own is /opt/volta, another user's ~/.local/share/volta.
    """
    if given := probe.env.get("VOLTA_ROOT"):
        return given
    home = f"{probe.env.get('HOME', '/root')}/{_OF_USER}"
    roots = [_OF_ROOT, home] if probe.is_root else [home, _OF_ROOT]
    return next((root for root in roots if probe.link(f"{root}/current")), roots[0])


def current_release(probe: Probe) -> str:
    """Return the directory of the current release.

    Raises NotHere where there is no install root at all, CannotLook where one has no release.
    """
    root = install_root(probe)
    current = f"{root}/current"
    if probe.link(current) is None:
        empty = "VOLTA_ROOT" not in probe.env and not probe.exists(root)
        raise (NotHere if empty else CannotLook)(
            f"no release is installed: {current} does not exist (install one with ./volta up,"
            " or name another install root with --root)"
        )
    directory = probe.resolve(current)
    if not probe.exists(directory):
        raise CannotLook(f"{current} leads to {directory}, which does not exist")
    return directory


def read_manifest(probe: Probe, directory: str) -> Manifest:
    """Return release.json. Raises CannotLook naming the field at fault."""
    path = f"{directory}/release.json"
    try:
        return msgspec.json.decode(probe.data(path), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CannotLook(f"{path}: {error}") from error


def parse_lock(data: bytes, path: str) -> Lock:
    """Return the lock. Raises CannotLook naming the field at fault."""
    import msgspec.yaml
    import yaml

    try:
        return msgspec.yaml.decode(data, type=Lock)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise CannotLook(f"{path}: {error}") from error


def marker_environment(python: str) -> dict[str, str]:
    """Return the PEP 508 environment of an interpreter of this machine, by its version."""
    from packaging.markers import default_environment

    environment = {key: str(value) for key, value in default_environment().items()}
    return environment | {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python,
        "implementation_version": python,
        "extra": "",
    }


def applying(lock: Lock, environment: dict[str, str]) -> list[LockedPackage]:
    """Return the locked packages whose marker holds, and the project itself."""
    from packaging.markers import InvalidMarker, Marker

    found = [LockedPackage(name=PROJECT, version=lock.version)]
    for package in lock.packages:
        try:
            if package.marker is None or Marker(package.marker).evaluate(environment):
                found.append(package)
        except InvalidMarker as error:
            raise CannotLook(f"stack.lock.yaml: marker of {package.name}: {error}") from error
    return found


def find_conflicts(distributions: "list[Distribution]", environment: dict[str, str]) -> list[str]:
    """Return every requirement that the installed distributions do not meet."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    versions = {canonicalize_name(d.name): d.version for d in distributions}
    conflicts = []
    for distribution in distributions:
        owner = f"{distribution.name} {distribution.version}"
        for text in distribution.requires:
            # Optional requirements are the bulk, and parsing them takes most of the time.
            if "extra ==" in text:
                continue
            try:
                wanted = Requirement(text)
            except InvalidRequirement as error:
                conflicts.append(f"{owner} has an invalid requirement: {error}")
                continue
            if wanted.marker and not wanted.marker.evaluate(environment):
                continue
            version = versions.get(canonicalize_name(wanted.name))
            if version is None:
                conflicts.append(f"{owner} requires {wanted.name}, which is not installed")
            elif not wanted.specifier.contains(version, prereleases=True):
                conflicts.append(
                    f"{owner} requires {wanted.name}{wanted.specifier}, but {version} is installed"
                )
    return conflicts


def collect(probe: Probe) -> ReleaseFacts:
    """Read the current release, its lock and what its venv holds."""
    from packaging.utils import canonicalize_name

    from volta_doctor.facts.python_envs.distributions import read_distributions
    from volta_doctor.facts.python_envs.layout import find_layout

    directory = current_release(probe)
    manifest = read_manifest(probe, directory)
    lock_path = f"{directory}/stack.lock.yaml"
    lock_bytes = probe.data(lock_path)
    lock = parse_lock(lock_bytes, lock_path)
    layout = find_layout(probe, f"{directory}/venv")
    distributions = read_distributions(probe, layout.sites)
    environment = marker_environment(layout.python)
    return ReleaseFacts(
        directory=directory,
        manifest=manifest,
        lock_digest=f"sha256:{hashlib.sha256(lock_bytes).hexdigest()}",
        locked=applying(lock, environment),
        installed=[
            Installed(name=canonicalize_name(d.name), version=d.version, sha256=d.sha256)
            for d in distributions
        ],
        conflicts=find_conflicts(distributions, environment),
    )
