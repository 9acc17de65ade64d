"""Driver versions: what is loaded, what is installed, and who replaced it."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.facts.packages import branch_of_version
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule
from volta_doctor.words import few, numbers

_VERSION = r"\d{3}\.\d+(?:\.\d+)?"
_LOADED = (
    rf"NVRM version: .*?(?P<version>{_VERSION})",
    rf"kernel module has.*the version (?P<version>{_VERSION})",
)
_LIBRARY = (
    rf"API mismatch: the client.*has the version (?P<version>{_VERSION}),",
    r"NVML library version: (?P<version>\d{3}\.\d+)",
)
# ii  libnvidia-compute-535:amd64  535.183.01-0ubuntu0.22.04.1  amd64  NVIDIA libcompute package
_DPKG = re.compile(
    rf"(?:^|\s)[ih][iFUHW]\s+((?:lib)?nvidia-[\w.+-]+|libcuda1\S*)\S*\s+(?:\d+:)?({_VERSION})\S*\s"
)
# nvidia-driver-cuda-libs-3:550.90.07-1.el9.x86_64, kmod-nvidia-latest-dkms-550.90.07-1.el9
_RPM = re.compile(
    r"(?:^|\s)((?:kmod-|akmod-|dkms-|xorg-x11-drv-|lib)?nvidia-?[a-zA-Z-]*?)-?(?:\d+:)?"
    rf"({_VERSION})-\d"
)
# Packages with versions or branches of their own.
_OTHERS = re.compile(r"settings|prime|modprobe|contain|toolkit|detect|firmware|fs$|docker|xconf")
_ON_DISK = re.compile(rf"^\W*version:\s+({_VERSION})\s*$")
_REBOOTED = re.compile(
    r"\brebooted\b|\b(?:after|since) (?:a |the |every |several |multiple )?reboot"
    r"|\b(?:tried|even) (?:a )?reboot|reboot(?:ing)? (?:did|does|do)(?:n't| not)"
    r"|重启(?:后|过|了|仍)",
    re.IGNORECASE,
)
_EARLY = re.compile(r"\[\s*(\d{1,3})\.\d+\].*API mismatch")
_EARLY_S = 120  # after the start of the kernel nobody has upgraded anything yet
_FIELD = re.compile(r"^\W*(Start-Date|Commandline|Upgrade|Install|Remove|Purge|End-Date): ")
_UNATTENDED = re.compile(r"^\W*Commandline: .*unattended-upgrade", re.IGNORECASE)
_REPLACED = re.compile(r"^\W*(?:Upgrade|Install): .*?\b((?:lib)?nvidia-[\w-]+)\S*\s*\(([^)]*)\)")


class Package(NamedTuple):
    """An installed package of the driver, and its version without the packager's part."""

    name: str
    version: str
    evidence: Evidence


class Versions(NamedTuple):
    """The driver versions that a case names: of the loaded module, and of its user-space side."""

    module: str
    library: str
    evidence: list[Evidence]

    @property
    def older_module(self) -> bool:
        """Whether the module was left behind by an upgrade."""
        return numbers(self.module) < numbers(self.library)


@rule("driver-lib-match")
def driver_lib_match(case: Case, row: Row) -> Iterator[Finding]:
    """Name both versions where a text shows them."""
    versions = _versions(case)
    if versions:
        text = f"The loaded module is {versions.module}, the libraries are {versions.library}."
        yield row.fail(text, *versions.evidence)


@rule("driver-half-installed")
def driver_half_installed(case: Case, row: Row) -> Iterator[Finding]:
    """An old module that is still there after a boot was never replaced on disk."""
    versions = _versions(case)
    if not versions or not versions.older_module:
        return
    on_disk = _on_disk(case)
    if on_disk and on_disk[0] == versions.module:
        text = f"The module on disk is {versions.module}, the libraries are {versions.library}"
        yield row.fail(f"{text}: the new module was never installed.", on_disk[1])
        return
    text = f"Module {versions.module} is loaded beside libraries {versions.library}"
    early = next(((m, e) for m, e in case.matching(_EARLY) if int(m[1]) < _EARLY_S), None)
    rebooted = case.lines(_REBOOTED, 1)
    if early:
        text += f" {early[0][1]} s after the boot: the boot loads the old module."
        seen = early[1]
    elif rebooted:
        text += " after a reboot: the new module was never installed."
        seen = rebooted[0]
    else:
        return
    why = "an old module in the initramfs does the same as one that was never replaced"
    yield likely(row.fail(text, seen, *versions.evidence), why)


@rule("reboot-pending")
def reboot_pending(case: Case, row: Row) -> Iterator[Finding]:
    """The new module is on disk, and the old one loaded."""
    versions, on_disk = _versions(case), _on_disk(case)
    if versions and on_disk and _same(on_disk[0], versions.library):
        text = f"Module {on_disk[0]} is on disk and {versions.module} still loaded."
        yield row.fail(text, on_disk[1], *versions.evidence)


@rule("driver-mixed-sources")
def driver_mixed_sources(case: Case, row: Row) -> Iterator[Finding]:
    """Packages of two branches are installed."""
    branches: dict[int, Package] = {}
    for package in _packages(case):
        branch = branch_of_version(package.version)
        if branch is not None:
            branches.setdefault(branch, package)
    if len(branches) > 1:
        named = few([f"{p.name} {p.version}" for p in branches.values()], 4)
        text = f"Packages of {len(branches)} driver branches are installed: {named}."
        finding = row.fail(text, *(package.evidence for package in branches.values()))
        yield likely(finding, "a package of the old branch may be a harmless rest")


@rule("unattended-upgrades-nvidia")
def unattended_upgrades(case: Case, row: Row) -> Iterator[Finding]:
    """The history of apt names who replaced which packages."""
    by: Evidence | None = None
    field: str = ""
    at: Evidence | None = None  # a field of the history, whose line may be broken
    for text, line in case.each_line() if case.lines("unattended-upgrade", 1) else ():
        begins = _FIELD.match(line.text)
        if begins or at is None:
            field, at = line.text, text.evidence(line)
        else:
            field = f"{field} {line.text}"
        if begins and begins[1] == "Start-Date":
            by = None
        elif _UNATTENDED.search(field):
            by = at
        elif by and (replaced := _REPLACED.search(field)):
            said = f"unattended-upgrades has replaced {replaced[1]} ({replaced[2]})."
            yield row.warn(said, by, at)
            return


@lru_cache(maxsize=1)
def _versions(case: Case) -> Versions | None:
    """Return the versions of both sides, if the case names both and they differ."""
    module = next(filter(None, (_named(case, pattern) for pattern in _LOADED)), None)
    library = next(filter(None, (_named(case, pattern) for pattern in _LIBRARY)), None)
    if library is None:
        newest = max(_packages(case), key=lambda p: numbers(p.version), default=None)
        library = (newest.version, newest.evidence) if newest else None
    if not module or not library:
        return None
    if _same(module[0], library[0]):
        return None
    return Versions(module[0], library[0], list(dict.fromkeys([module[1], library[1]])))


def _same(version: str, of_library: str) -> bool:
    """Compare with a version of which NVML tells the first two numbers only."""
    return version == of_library or version.startswith(f"{of_library}.")


def _named(case: Case, pattern: str) -> tuple[str, Evidence] | None:
    groups, seen = case.groups(pattern), case.lines(pattern, 1)
    return (groups["version"], seen[0]) if groups and seen else None


def _on_disk(case: Case) -> tuple[str, Evidence] | None:
    """Return the version that modinfo tells of the module."""
    if not case.lines("modinfo.*nvidia|filename: .*/nvidia", 1):
        return None
    return next(((match[1], seen) for match, seen in case.matching(_ON_DISK)), None)


@lru_cache(maxsize=1)
def _packages(case: Case) -> list[Package]:
    """Return the driver's packages in listings of dpkg and rpm."""
    return [
        Package(match[1].rstrip("-"), match[2], evidence)
        for regex in (_DPKG, _RPM)
        for match, evidence in case.matching(regex)
        if not _OTHERS.search(match[1])
    ]
