"""Does a unit's sandbox let its server reach the GPUs?"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.checks.units import drop_in, each_unit, on_gpus, seen
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve import Server
from volta_doctor.facts.units import MODULES_LOAD, UVM_SERVICE, UnitFacts, UnitsFacts
from volta_doctor.findings import Finding

# What CUDA opens: device nodes (one card will do), and the groups of /proc/devices that they are
# of. Older drivers call the cards' group nvidia-frontend.
_NODES = {
    "a card": r"/dev/nvidia\d+",
    "/dev/nvidiactl": r"/dev/nvidiactl",
    "/dev/nvidia-uvm": r"/dev/nvidia-uvm",
}
_CARD_GROUPS, _UVM_GROUP = ("nvidia", "nvidiactl", "nvidia-frontend"), "nvidia-uvm"
_FAMILIES = {"AF_UNIX": "processes talk through it", "AF_NETLINK": "NCCL lists interfaces by it"}
# Lines of drop-ins.
# closed leaves /dev/null and its like, without which a unit does not start.
_CLOSED = ["DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"]
_ORDER = {"Unit": [f"Wants={UVM_SERVICE}", f"After={UVM_SERVICE}"]}

_LEVELS = ("fail", "warn", "info")


class Flaw(NamedTuple):
    """One fault of a sandbox: its level, what it does, the setting, and the lines that mend it."""

    level: str
    text: str
    setting: str
    lines: dict[str, list[str]]


def names(text: str, name: str) -> bool:
    """Say whether a list of systemd's holds a name; an error code may follow it (name:EPERM)."""
    return any(word.partition(":")[0] == name for word in text.removeprefix("~").split())


def allows(text: str, name: str) -> bool:
    """Say whether a filter of systemd's lets a name through."""
    return names(text, name) != text.startswith("~")


def opened(unit: UnitFacts, groups: tuple[str, ...], node: str) -> list[str]:
    """Return the DeviceAllow entries by which a unit may read and write such devices."""
    found = []
    for entry in unit.device_allow:
        device, _, access = entry.partition(" ")
        kind, dash, pattern = device.partition("-")
        by_group = kind == "char" and dash and any(fnmatchcase(g, pattern) for g in groups)
        if (by_group or re.fullmatch(node, device)) and {"r", "w"} <= set(access or "rwm"):
            found.append(entry)
    return found


def device_flaws(unit: UnitFacts) -> Iterator[Flaw]:
    """Judge which device nodes the server sees, and which it may open."""
    if unit.private_devices:
        bound = [(path.split(":")[1:2] or [path])[0] for path in unit.bind_paths]
        hidden = [
            what
            for what, node in _NODES.items()
            if not any(path == "/dev" or re.fullmatch(node, path) for path in bound)
        ]
        mend = _ORDER | {"Service": ["PrivateDevices=no", *_CLOSED]}
        if hidden:
            text = f"PrivateDevices=yes hides {', '.join(hidden)}"
            yield Flaw("fail", text, "PrivateDevices=yes", mend)
            return  # it closes DevicePolicy as well
        text = "PrivateDevices=yes with bound devices has not been tried with CUDA"
        yield Flaw("info", text, "PrivateDevices=yes", mend)
    # The manager of a user has no right to filter devices.
    if unit.user is None and (unit.device_allow or unit.device_policy in ("closed", "strict")):
        shut = [
            what
            for what, node in _NODES.items()
            if not opened(unit, (_UVM_GROUP,) if "uvm" in what else _CARD_GROUPS, node)
        ]
        if shut:
            setting = (
                f"DevicePolicy={unit.device_policy} DeviceAllow={'; '.join(unit.device_allow)}"
            )
            text = f"no DeviceAllow lets it read and write {', '.join(shut)}"
            yield Flaw("fail", text, setting, _ORDER | {"Service": _CLOSED})


def uvm_flaws(units: UnitsFacts, unit: UnitFacts) -> Iterator[Flaw]:
    """Judge whether nvidia-uvm has its number by the time when systemd looks it up.

    Groups are looked up as the unit starts; one that is missing then stays denied (systemd
    #14504). modules-load runs before sysinit.target, which units follow by default.
    """
    entries = opened(unit, (_UVM_GROUP,), r"/dev/nvidia-uvm")
    if unit.user is not None or not entries or any(e.startswith("/dev/") for e in entries):
        return
    for loader in units.uvm_loaders:
        if loader.unit == MODULES_LOAD:
            before = bool({MODULES_LOAD, "sysinit.target", "basic.target"} & set(unit.after))
        else:  # an instance of modprobe@.service runs only where some unit asks for it
            asked = loader.unit in unit.pulls_in or not loader.unit.startswith("modprobe@")
            before = asked and loader.unit in unit.after
        if before:
            return
    text = "nothing loads nvidia-uvm before it starts, and DeviceAllow misses what comes later"
    yield Flaw("warn", text, f"DeviceAllow={entries[0]}", _ORDER)


def other_flaws(unit: UnitFacts, address_families: str, system_calls: str) -> Iterator[Flaw]:
    """Judge /proc, executable memory, sockets and system calls."""
    if unit.proc_subset == "pid":
        text = "ProcSubset=pid hides /proc/driver/nvidia"
        yield Flaw("fail", text, "ProcSubset=pid", {"Service": ["ProcSubset=all"]})
    if unit.memory_deny_write_execute:
        text = "MemoryDenyWriteExecute=yes stops Triton and NVRTC, which compile at run time"
        lines = {"Service": ["MemoryDenyWriteExecute=no"]}
        yield Flaw("warn", text, "MemoryDenyWriteExecute=yes", lines)
    for family, use in _FAMILIES.items():
        if not allows(address_families, family):
            setting = f"RestrictAddressFamilies={address_families or 'none'}"
            lines = {"Service": [f"RestrictAddressFamilies={family}"]}
            yield Flaw("warn", f"{family} is denied ({use})", setting, lines)
    if not allows(system_calls, "memfd_create"):
        setting = "SystemCallFilter=" + ("~ memfd_create" if system_calls[:1] == "~" else "…")
        lines = {"Service": ["SystemCallFilter=memfd_create"]}
        yield Flaw("warn", "the system call memfd_create is denied", setting, lines)


@check("unit-sandbox")
def unit_sandbox(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """A service that works in a shell and finds no GPU as a unit is in a sandbox."""
    units = facts.units.need()

    def judge(server: Server, unit: UnitFacts) -> Finding:
        if not on_gpus(facts, server):
            return row.skip("It runs on the CPU.", subject=server.name)
        families, calls = unit.address_families, unit.system_calls
        told = (unit.private_devices, unit.device_policy, unit.proc_subset)
        if families is None or calls is None or None in (*told, unit.memory_deny_write_execute):
            return row.unknown("systemd does not tell all of its sandbox.", subject=server.name)
        flaws = [
            *device_flaws(unit),
            *uvm_flaws(units, unit),
            *other_flaws(unit, families, calls),
        ]
        if not flaws:
            text = f"DevicePolicy={unit.device_policy} DeviceAllow={'; '.join(unit.device_allow)}"
            return row.ok("Nothing keeps it from the GPUs.", seen(unit, text), subject=server.name)
        flaws.sort(key=lambda flaw: _LEVELS.index(flaw.level))
        lines: dict[str, list[str]] = {}
        for flaw in flaws:
            for section, added in flaw.lines.items():
                known = lines.setdefault(section, [])
                known += [line for line in added if line not in known]
        text = "; ".join(flaw.text for flaw in flaws)
        evidence = [seen(unit, flaw.setting) for flaw in flaws]
        say = {"fail": row.fail, "warn": row.warn, "info": row.info}[flaws[0].level]
        steps = drop_in(row, unit, lines)
        return say(f"{text[0].upper()}{text[1:]}.", *evidence, subject=server.name, steps=steps)

    return each_unit(facts, row, judge)
