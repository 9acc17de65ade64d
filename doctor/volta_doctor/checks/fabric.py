"""Does Fabric Manager run where there is an NVSwitch, and only there?"""

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.checks.steps import disable, enable
from volta_doctor.facts.model import Facts
from volta_doctor.facts.modules import parse_version
from volta_doctor.facts.packages import PackagesFacts
from volta_doctor.facts.pci import DEVICES
from volta_doctor.facts.units import FABRIC_MANAGER, UnitFacts
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several

# NVIDIA's names of the package: nvidia-fabricmanager-580, nvidia-fabric-manager (RPM).
_PACKAGES = ("nvidia-fabricmanager", "nvidia-fabric-manager")


def package_version(packages: PackagesFacts) -> tuple[str, str] | None:
    """Return the name and driver version of the installed Fabric Manager."""
    for package in packages.installed:
        version = parse_version(package.version)
        if package.name.startswith(_PACKAGES) and version and "-dev" not in package.name:
            return package.name, version
    return None


@check("fabricmanager")
def fabricmanager(facts: Facts, row: Row) -> Finding:
    """Behind NVSwitches GPUs have no NVLink, and CUDA does not start, until it has set them up."""
    switches, units = facts.pci.need().nvswitches, facts.units.need()
    unit = units.find(FABRIC_MANAGER)
    if units.problem and not switches:
        return row.skip(f"No NVSwitch is here, and {units.problem}.")
    reason = units.problem or (unit.problem if unit else "the snapshot does not hold it")
    if unit is None or reason or not unit.load_state:
        return row.unknown(f"{FABRIC_MANAGER} cannot be judged: {reason}.")
    shown = f"{unit.load_state}, {unit.unit_file_state or 'no unit file'}, {unit.active_state}"
    seen = Evidence(f"systemctl show {FABRIC_MANAGER}", shown)
    if switches:
        count = several(len(switches), "NVSwitch")
        bridges = Evidence(DEVICES, f"{count}, the first {switches[0].bus_id}")
        return _with_switches(facts, row, unit, len(switches), [bridges, seen])
    if (unit.unit_file_state or "").startswith("enabled"):
        text = "No NVSwitch is here, so Fabric Manager has nothing to do, yet it is enabled."
        return row.warn(text, seen, steps=[disable(FABRIC_MANAGER)])
    return row.ok("No NVSwitch is here, and Fabric Manager is not enabled.", seen)


def _with_switches(
    facts: Facts, row: Row, unit: UnitFacts, switches: int, seen: list[Evidence]
) -> Finding:
    driver = facts.modules.need().loaded_version
    package = package_version(facts.packages.need())
    if package:
        seen.append(Evidence("packages", f"{package[0]} {package[1]}"))
    if package and driver and package[1] != driver:
        text = f"Fabric Manager is {package[1]}, the driver {driver}: it refuses any other."
        return row.fail(text, *seen)
    if unit.active_state != "active":
        # It starts only at the driver's own version.
        steps = [enable(FABRIC_MANAGER)] if package and driver else []
        text = f"The host has {several(switches, 'NVSwitch')}, but Fabric Manager is not active"
        state = f"{unit.load_state}, {unit.active_state}, result {unit.result}"
        return row.fail(f"{text} ({state}).", *seen, steps=steps)
    if driver is None:
        return row.unknown("It is active, but the loaded driver's version is not known.", *seen)
    if package is None:
        return row.unknown("It is active, but no package tells its version.", *seen)
    return row.ok(f"It is active at the driver's version, {driver}.", *seen)
