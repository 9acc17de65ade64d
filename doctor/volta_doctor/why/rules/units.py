"""Units of systemd in a text: what their sandbox closes, against the names that the kernel uses."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.sandbox import Flaw, device_flaws, names, other_flaws
from volta_doctor.facts.units import UnitFacts
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.vocabulary import ABOUT_GPUS
from volta_doctor.words import few

_LINE = re.compile(r"^\s*#?\s*([A-Z]\w{4,40})=(.*)$")
_OPTION = re.compile(r"(?:-p|--property)[\s=]+['\"]?([A-Z]\w{4,40})=([^\s'\"]+(?:\s[rwm]{1,3}\b)?)")
_KEYS = (
    "PrivateDevices", "DevicePolicy", "DeviceAllow", "BindPaths", "BindReadOnlyPaths",
    "ProcSubset", "MemoryDenyWriteExecute", "RestrictAddressFamilies", "SystemCallFilter",
    "IPAddressDeny", "IPAddressAllow", "ProtectClock", "MemoryMax", "MemoryLimit",
)  # fmt: skip
_ANY_KEY = "|".join(f"{key}=" for key in _KEYS)
_TRUE = ("yes", "true", "on", "1")
_MAJOR = re.compile(r"^\s*195\s+([\w-]+)\s*$")
# The groups of the cards, of which a driver registers some: /proc/devices tells which.
_GROUPS = ("nvidia", "nvidiactl", "nvidia-frontend", "nvidia-modeset")
_NO_GPU = (
    r"no compatible GPUs were discovered|No devices (?:were )?found|no CUDA-capable device"
    r"|No CUDA GPUs are available|no usable GPU found|No GPUs available|No GPU found"
)
_KILLED = r"CONSTRAINT_MEMCG|cgroup out of memory|killed by the OOM killer|result 'oom-kill'"


class Setting(NamedTuple):
    """A line of a unit file, of systemctl show or of systemd-run -p."""

    value: str
    evidence: Evidence


def settings(case: Case) -> dict[str, list[Setting]]:
    """Return the settings of the sandbox by key; an empty value has emptied its list."""
    found: dict[str, list[Setting]] = {}
    for text, line in case.each_line() if case.lines(_ANY_KEY, 1) else ():
        match = _LINE.match(line.body)
        for key, value in [match.groups()] if match else _OPTION.findall(line.text):
            if key not in _KEYS or value == "...":
                continue
            values = found.setdefault(key, [])
            if value.strip():
                values.append(Setting(value.strip(), text.evidence(line)))
            else:
                values.clear()
    return {key: values for key, values in found.items() if values}


def _groups(case: Case) -> list[Setting]:
    """Return the names that /proc/devices has for the cards' major number."""
    return [Setting(match[1], evidence) for match, evidence in case.matching(_MAJOR)]


@rule("unit-sandbox")
def closed_to_the_server(case: Case, row: Row) -> Iterator[Finding]:
    """The check's own rules, on what a text shows of a unit; what it leaves out is not judged."""
    shown = settings(case)
    if not shown or not case.lines(ABOUT_GPUS, 1):
        return
    registered = _groups(case)
    no_gpu = case.lines(_NO_GPU, 2)
    unit, dead = _unit(shown, [group.value for group in registered], bool(no_gpu))
    flaws = [*_devices(unit, shown), *other_flaws(unit, *_lists(shown)), *_network(shown)]
    if not flaws:
        return
    worst = min(flaws, key=lambda flaw: ("fail", "warn", "info").index(flaw.level))
    say = {"fail": row.fail, "warn": row.warn, "info": row.info}[worst.level]
    text = "; ".join(dict.fromkeys(flaw.text for flaw in flaws))
    if dead and registered:
        known = few(list(dict.fromkeys(group.value for group in registered)))
        names_of = few([_group(entry) for entry in dead])
        text += f" ({names_of} is no group: /proc/devices calls the cards {known})"
    lines = [s.evidence for key in shown for s in shown[key] if key in _concerned(flaws)]
    lines += [group.evidence for group in registered] if dead else []
    finding = say(f"{text[0].upper()}{text[1:]}.", *lines[:6], *no_gpu)
    if dead and not registered:
        finding = likely(
            finding, "drivers differ in how they name the group, and /proc/devices is not shown"
        )
    yield finding


def _unit(
    shown: dict[str, list[Setting]], registered: list[str], no_gpu: bool
) -> tuple[UnitFacts, list[str]]:
    """Return the unit, without the entries of DeviceAllow that name no group, and those."""

    def last(key: str) -> str:
        return shown[key][-1].value.lower() if key in shown else ""

    allowed = [setting.value for setting in shown.get("DeviceAllow", [])]
    of_cards = [entry for entry in allowed if _group(entry) in _GROUPS]
    if registered:
        dead = [entry for entry in of_cards if _group(entry) not in registered]
    else:  # a server that finds no GPU although one of the names is allowed
        one_name = len({_group(entry) for entry in of_cards}) == 1
        dead = of_cards if no_gpu and one_name and _group(of_cards[0]) != "nvidia" else []
    if last("ProtectClock") in _TRUE:
        allowed.append("char-rtc r")  # systemd.exec(5): it implies this, and so closes the rest
    bound = [
        path
        for key in ("BindPaths", "BindReadOnlyPaths")
        for setting in shown.get(key, [])
        for path in setting.value.split()
    ]
    unit = UnitFacts(
        name="unit",
        private_devices=last("PrivateDevices") in _TRUE,
        bind_paths=bound,
        device_allow=[entry for entry in allowed if entry not in dead],
        device_policy=last("DevicePolicy") or "auto",
        proc_subset=last("ProcSubset") or "all",
        memory_deny_write_execute=last("MemoryDenyWriteExecute") in _TRUE,
    )
    return unit, dead


def _group(entry: str) -> str:
    return entry.split()[0].removeprefix("char-") if entry.startswith("char-") else ""


def _devices(unit: UnitFacts, shown: dict[str, list[Setting]]) -> Iterator[Flaw]:
    by_clock = "ProtectClock" in shown and unit.device_allow == ["char-rtc r"]
    for flaw in device_flaws(unit):
        if by_clock and flaw.setting.startswith("DevicePolicy"):
            text = "ProtectClock=yes implies DeviceAllow=char-rtc, which closes all other devices"
            yield flaw._replace(text=text, setting="ProtectClock=yes")
        else:
            yield flaw


def _lists(shown: dict[str, list[Setting]]) -> tuple[str, str]:
    """Return the address families and what of the system calls is denied by name.

    A list of allowed calls has groups (@system-service), which only systemd can expand.
    """
    families = " ".join(s.value for s in shown.get("RestrictAddressFamilies", [])) or "~"
    denied = [s.value for s in shown.get("SystemCallFilter", []) if s.value.startswith("~")]
    calls = "~ memfd_create" if any(names(value, "memfd_create") for value in denied) else "~"
    return families, calls


def _network(shown: dict[str, list[Setting]]) -> Iterator[Flaw]:
    denied = " ".join(s.value for s in shown.get("IPAddressDeny", []))
    allowed = " ".join(s.value for s in shown.get("IPAddressAllow", []))
    if "any" in denied.split() and not re.search(r"localhost|127\.|\bany\b", allowed):
        text = "IPAddressDeny=any closes 127.0.0.1 as well, by which processes of a server meet"
        yield Flaw("warn", text, "IPAddressDeny=any", {"Service": ["IPAddressAllow=localhost"]})


def _concerned(flaws: list[Flaw]) -> set[str]:
    words = " ".join(flaw.setting for flaw in flaws)
    return {key for key in _KEYS if key in words}


_AT_BOOT = (
    r"after (?:a |each |every )?(?:cold )?(?:re)?boot|at (?:cold )?boot|-- Boot [0-9a-f]{8}"
    r"|restarting (?:the )?service|restart(?:ing)? (?:it |the service )?(?:manually )?"
    r"(?:fixes|helps|works)"
)
_BY_SYSTEMD = r"systemd|systemctl|journalctl|\w\.service"


@rule("unit-start")
def before_the_driver(case: Case, row: Row) -> Iterator[Finding]:
    """A server that finds no GPU at boot, and finds it later, was started before the driver."""
    no_gpu, at_boot = case.lines(_NO_GPU, 2), case.lines(_AT_BOOT, 2)
    if no_gpu and at_boot and case.lines(_BY_SYSTEMD, 1) and not settings(case):
        yield likely(
            row.fail("The unit starts before the driver is ready.", *no_gpu, *at_boot),
            "the text speaks of a boot, and a later start would show whether it is only that",
        )


@rule("unit-limits")
def below_what_it_needs(case: Case, row: Row) -> Iterator[Finding]:
    """A unit that was killed in its own group was so at the MemoryMax that it has."""
    shown = settings(case)
    limits = [s for key in ("MemoryMax", "MemoryLimit") for s in shown.get(key, [])]
    limits = [limit for limit in limits if limit.value.lower() != "infinity"]
    killed = case.lines(_KILLED, 2)
    if limits and killed:
        text = f"The unit reached its limit of memory ({limits[-1].value}) and was killed for it."
        yield row.fail(text, limits[-1].evidence, *killed)
