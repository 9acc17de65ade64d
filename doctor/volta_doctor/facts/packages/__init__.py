"""The `packages` section: installed NVIDIA packages and all that may move or lock them."""

import re

import msgspec

from volta_doctor.probe import CannotLook, Probe

# Of all packages only these are recorded.
OF_INTEREST = re.compile(r"nvidia|^cuda|^libcuda")
_DRIVER = re.compile(
    r"^(nvidia-(?:tesla-(?:\d+-)?)?(driver|open|kernel|dkms|headless|utils|compute-utils|firmware|smi|fabricmanager)"
    r"|libnvidia-|libcuda1|cuda-drivers|xserver-xorg-video-nvidia"
    r"|linux-(modules|objects|signatures)-nvidia|kmod-nvidia|nvidia-kmod)"
)
_PINNING = "nvidia-driver-pinning-"
# 580.95.05-1, 3:580.95.05: driver versions begin with a three-digit branch.
_BRANCH_IN_VERSION = re.compile(r"^(?:\d+:)?(\d{3})\.")
_BRANCH_IN_NAME = re.compile(r"-(\d{3})(?=-|$)")


class Package(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An installed package. `depends` holds its dependency clauses as the manager writes them.

    `candidate` is the version that the next upgrade would install, None where nobody said.
    """

    name: str
    version: str
    depends: list[str] = []
    held: bool = False
    candidate: str | None = None
    candidate_depends: list[str] = []

    @property
    def is_driver(self) -> bool:
        """Part of the driver; container tools, CUDA toolkits and pinning packages are not."""
        if not _DRIVER.match(self.name) or self.name.startswith(_PINNING):
            return False
        by_version = _BRANCH_IN_VERSION.match(self.version)
        # Ubuntu's linux-modules-nvidia-580-... carry the kernel's version.
        return bool(by_version or self.name.startswith("linux-"))

    @property
    def branch_in_name(self) -> int | None:
        """The driver branch in the package's name."""
        return branch_in_name(self.name)

    @property
    def branch_in_version(self) -> int | None:
        """The driver branch at the head of the package's version."""
        return branch_of_version(self.version)


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A stanza of apt preferences, or a line of dnf's versionlock list."""

    packages: str
    pin: str
    priority: int
    file: str


class AutoUpgrades(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether some service upgrades packages by itself, and the names that it must leave alone.

    `blacklist` holds regular expressions, matched at the beginning of a name.
    """

    tool: str
    enabled: bool
    source: str
    blacklist: list[str] = []


class Repository(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A CUDA repository among apt's sources.

    `sha1_keys` are its signing keys that are bound by SHA-1 only; without any `keys` the
    `key_problem` says why none could be read.
    """

    uri: str
    file: str
    line: int
    trusted: bool = False
    keyring: str | None = None
    keys: list[str] = []
    sha1_keys: list[str] = []
    key_problem: str | None = None


class PackagesFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the package manager knows of NVIDIA.

    `sha1_rejected_from` is the date (YYYY-MM-DD) from which this apt rejects keys bound by SHA-1,
    None where it has no such policy. `candidates_problem` says why no candidates are recorded.
    """

    manager: str
    installed: list[Package]
    candidates_problem: str | None = None
    pins: list[Pin]
    auto_upgrades: AutoUpgrades | None = None
    repositories: list[Repository]
    sha1_rejected_from: str | None = None

    @property
    def drivers(self) -> list[Package]:
        """The installed packages of the driver."""
        return [package for package in self.installed if package.is_driver]


def branch_in_name(name: str) -> int | None:
    """Return the driver branch that a package name carries."""
    match = _BRANCH_IN_NAME.search(name) if "nvidia" in name or "cuda" in name else None
    return int(match[1]) if match else None


def branch_of_version(version: str) -> int | None:
    """Return the driver branch at the head of a package version."""
    match = _BRANCH_IN_VERSION.match(version)
    return int(match[1]) if match else None


def collect(probe: Probe) -> PackagesFacts:
    """Ask the host's package manager, or rather its files."""
    from volta_doctor.facts.packages import apt, rpm

    if probe.exists(apt.STATUS):
        return apt.collect(probe)
    if probe.which("rpm"):
        return rpm.collect(probe)
    raise CannotLook(f"neither dpkg ({apt.STATUS}) nor rpm is on this host")
