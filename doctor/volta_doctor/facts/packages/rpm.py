"""How RHEL and its kin fill the `packages` section; candidates would need the network."""

import re

from volta_doctor.facts.packages import OF_INTEREST, AutoUpgrades, Package, PackagesFacts, Pin
from volta_doctor.probe import CannotLook, Probe

_COMMAND_S = 5.0
_VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
_AUTOMATIC = "/etc/dnf/automatic.conf"
_TIMERS = "/etc/systemd/system/timers.target.wants"


def parse_list(text: str) -> list[Package]:
    """Return the NVIDIA packages of `rpm -qa` in the format `name version-release`."""
    pairs = (line.split(" ", 1) for line in text.splitlines() if " " in line)
    return [Package(name=n, version=v) for n, v in pairs if OF_INTEREST.search(n)]


def parse_versionlock(text: str) -> list[Pin]:
    """Return dnf 4's locked patterns: `kmod-nvidia-latest-dkms-3:580.95.05-1.el9.*`."""
    return [
        Pin(packages=name, pin=f"versionlock {version}", priority=1000, file=_VERSIONLOCK)
        for name, version in re.findall(r"^([^#!\s]\S*?)-((?:\d+:|\*:)?\d+\.\S+)$", text, re.M)
    ]


def parse_automatic(text: str, timer: bool) -> AutoUpgrades:
    """Return dnf-automatic's settings: it upgrades when its timer runs and apply_updates is on."""
    applies = any(
        line.replace(" ", "").lower()
        in ("apply_updates=yes", "apply_updates=true", "apply_updates=1")
        for line in text.splitlines()
    )
    return AutoUpgrades(tool="dnf-automatic", enabled=timer and applies, source=_AUTOMATIC)


def collect(probe: Probe) -> PackagesFacts:
    """Ask rpm for names and versions and read dnf's files."""
    done = probe.run("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n", limit=_COMMAND_S)
    if done.exit_code != 0:
        raise CannotLook(f"rpm -qa: {done.complaint}")
    automatic = probe.text_or_none(_AUTOMATIC)
    timers = [name for name in probe.names(_TIMERS) if name.startswith("dnf-automatic")]
    return PackagesFacts(
        manager="dnf",
        installed=parse_list(done.stdout),
        candidates_problem="dnf is not asked for candidates: that needs the network",
        pins=parse_versionlock(probe.text_or_none(_VERSIONLOCK) or ""),
        repositories=[],
        auto_upgrades=parse_automatic(automatic, bool(timers)) if automatic else None,
    )
