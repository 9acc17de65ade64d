#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Read and set what a GPU keeps of its modes, through NVML."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_gpu
short_description: Read and set the modes of a host's NVIDIA GPUs
description:
  - Sets through NVML what differs from what is wanted, and reads it back.
  - Nothing is set where anything that is wanted cannot be, on any of the GPUs.
  - C(keep) leaves a setting alone. A card that lacks one is told in C(notes), and fails only where
    more is asked of it than it begins with.
options:
  pynvml:
    description: The file pynvml.py of nvidia-ml-py on the host.
    type: path
    required: true
  gpus:
    description: Which GPUs, each by index, UUID or PCI address; empty for all.
    type: list
    elements: str
    default: []
  persistence:
    description: Whether the driver keeps a card's state when nobody uses it.
    type: str
    choices: [enabled, disabled, keep]
    default: keep
  compute_mode:
    description: How many processes may use a card.
    type: str
    choices: [default, exclusive_process, prohibited, keep]
    default: keep
  ecc:
    description: >-
      Error correction after the next boot; C(auto) turns it on where a card has it, C(enabled)
      fails where one has not.
    type: str
    choices: [auto, enabled, disabled, keep]
    default: keep
  power_limit:
    description: In watts, or C(default) for the card's own.
    type: str
    default: keep
  application_clocks:
    description: >-
      The clocks under load as C(memory,graphics) in MHz, C(highest) for the highest that the card
      takes, or C(default) for its own.
    type: str
    default: keep
  accounting:
    description: Whether the driver counts what each process uses.
    type: str
    choices: [enabled, disabled, keep]
    default: keep
  timeout:
    description: Seconds in which NVML must answer.
    type: int
    default: 60
  verify:
    description: >-
      Set nothing, and fail where a GPU is not as it is wanted, or waits for a reboot.
    type: bool
    default: false
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Turn ECC on, and hold two cards at 250 W
  volta_gpu:
    pynvml: /opt/volta/lib/pynvml.py
    gpus: ["0", "0000:5e:00.0"]
    ecc: enabled
    power_limit: 250
  register: gpus
"""
RETURN = r"""
available:
  description: >-
    Whether NVML answers. Where it does not, C(msg) says why; that fails but in check mode.
  type: bool
  returned: always
gpus:
  description: >-
    The GPUs chosen, each with index, address, uuid and name, its settings in the words of the
    options (null where the card has none; C(ecc) is what the next boot brings, C(ecc_current) what
    is), C(limits) and C(clocks) that it takes, the C(processes) that compute on it with pid, name,
    unit and all of that as C(text), and C(volatile), the settings wanted that the next boot loses.
    In check mode, as they are.
  type: list
  elements: dict
  returned: when NVML answers
reboot_required:
  description: Whether something waits for a reboot, whoever set it; in check mode, would wait.
  type: bool
  returned: when NVML answers
reboot_reasons:
  description: What waits, a sentence for each GPU.
  type: list
  elements: str
  returned: when NVML answers
notes:
  description: Settings that a GPU does not have and that were not insisted on, a sentence each.
  type: list
  elements: str
  returned: when NVML answers
"""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

MODES = ["disabled", "enabled"]
COMPUTE_MODES = ["default", "exclusive_thread", "prohibited", "exclusive_process"]  # as in nvml.h


class GpuError(Exception):
    """What is wanted cannot be; says why, and what to do."""


class UnavailableError(Exception):
    """NVML does not answer: a role that comes before this one has not done its work."""


@dataclass
class Card:
    """A GPU: how NVML calls it, what is reported of it, and what it should be.

    `supported` are graphics clocks by memory clock, in MHz.
    """

    handle: Any
    state: dict[str, Any]
    supported: dict[int, list[int]] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)

    def changes(self) -> dict[str, str]:
        """What differs from what it should be."""
        return {name: v for name, v in self.targets.items() if self.state[name] != v}

    def __str__(self) -> str:
        return f"GPU {self.state['index']} ({self.state['address']})"


class Setting(NamedTuple):
    """One that can be set. Values are the options' own words; a card that lacks it has None."""

    target: Callable[[str, Card], str]  # what the word asked means on a card
    write: Callable[[Any, Any, str], None]
    boots_as: Callable[[Card], str | None]  # what a boot makes of it; None: it stays
    modest: tuple[str, ...] = ()  # words that a card without it satisfies


def power_limit(asked: str, card: Card) -> str:
    """Return the limit in watts that is meant."""
    limits = card.state["limits"]
    if asked == "default":
        return str(limits["default"])
    if not re.fullmatch(r"\d+(\.\d+)?", asked):
        raise GpuError(f"power_limit is {asked!r}; it must be in watts, default or keep")
    if not float(limits["min"]) <= float(asked) <= float(limits["max"]):
        raise GpuError(
            f"power_limit {asked} W is out of range: it takes {limits['min']} to {limits['max']} W"
        )
    return f"{float(asked):g}"


def application_clocks(asked: str, card: Card) -> str:
    """Return the clocks that are meant, as `memory,graphics` in MHz."""
    if asked in ("default", "highest"):
        return str(card.state["clocks"][asked])
    if not re.fullmatch(r"\d+,\d+", asked):
        raise GpuError(
            f"application_clocks is {asked!r}; it must be memory,graphics in MHz, highest, default"
            " or keep"
        )
    memory, graphics = map(int, asked.split(","))
    if memory not in card.supported:
        taken = ", ".join(str(clock) for clock in sorted(card.supported))
        raise GpuError(f"application_clocks: memory clock {memory} MHz; it takes {taken} MHz")
    clocks = sorted(card.supported[memory])
    if graphics not in clocks:
        near = sorted(sorted(clocks, key=lambda clock: abs(clock - graphics))[:2])
        raise GpuError(
            f"application_clocks: graphics clock {graphics} MHz; with memory at {memory} MHz it"
            f" takes {len(clocks)} from {clocks[0]} to {clocks[-1]} MHz, the nearest"
            f" {' and '.join(map(str, near))}"
        )
    return asked


def write_clocks(nvml: Any, handle: Any, value: str) -> None:
    memory, graphics = map(int, value.split(","))
    nvml.nvmlDeviceSetApplicationsClocks(handle, memory, graphics)


# In the order in which they are set: without persistence, the others may not last.
SETTINGS = {
    "persistence": Setting(
        lambda asked, _card: asked,
        lambda nvml, handle, v: nvml.nvmlDeviceSetPersistenceMode(handle, MODES.index(v)),
        lambda _card: "disabled",
        ("disabled",),
    ),
    "ecc": Setting(
        lambda asked, _card: "enabled" if asked == "auto" else asked,
        lambda nvml, handle, v: nvml.nvmlDeviceSetEccMode(handle, MODES.index(v)),
        lambda _card: None,
        ("auto", "disabled"),
    ),
    "compute_mode": Setting(
        lambda asked, _card: asked,
        lambda nvml, handle, v: nvml.nvmlDeviceSetComputeMode(handle, COMPUTE_MODES.index(v)),
        lambda _card: "default",
        ("default",),
    ),
    "accounting": Setting(
        lambda asked, _card: asked,
        lambda nvml, handle, v: nvml.nvmlDeviceSetAccountingMode(handle, MODES.index(v)),
        lambda _card: "disabled",
        ("disabled",),
    ),
    "power_limit": Setting(
        power_limit,
        lambda nvml, handle, v: nvml.nvmlDeviceSetPowerManagementLimit(
            handle, round(float(v) * 1000)
        ),
        lambda card: card.state["limits"]["default"],
        ("default",),
    ),
    "application_clocks": Setting(
        application_clocks,
        write_clocks,
        lambda card: card.state["clocks"]["default"],
        ("default", "highest"),
    ),
}


def load_nvml(path: Path) -> Any:
    """Return pynvml, initialised."""
    spec = importlib.util.spec_from_file_location("pynvml", path)
    if spec is None or spec.loader is None or not path.exists():
        raise UnavailableError(f"{path} is not there: run the role gpu_mode, which puts it there.")
    nvml = sys.modules["pynvml"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nvml)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        reasons = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
                "libnvidia-ml.so.1 is not on this host: install the driver (role driver)."
            ),
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: (
                "The NVIDIA driver's module is not loaded, or finds no card: modprobe nvidia, and"
                " see journalctl -k -g NVRM for the reason."
            ),
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: mismatch(nvml),
        }
        if error.value in reasons:
            raise UnavailableError(reasons[error.value]) from None
        raise GpuError(f"NVML does not start: {error}.") from None
    return nvml


def mismatch(nvml: Any) -> str:
    try:
        library = nvml.nvmlSystemGetNVMLVersion()
    except nvml.NVMLError:
        library = "unknown"
    loaded = "unknown"
    version = Path("/proc/driver/nvidia/version")
    if version.exists() and (found := re.search(r"\d+\.\d+(\.\d+)?", version.read_text())):
        loaded = found[0]
    return (
        f"The driver's libraries (NVML {library}) and its loaded module ({loaded}) are of two"
        " versions: reboot, which loads the module that goes with the libraries."
    )


def told(nvml: Any, call: str, *arguments: Any) -> Any:
    """Return what NVML tells, None where the card or the driver has no such thing."""
    try:
        return getattr(nvml, call)(*arguments)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return None
        raise


def named(names: list[str], number: int | None) -> str | None:
    return None if number is None else names[number]


def watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:g}"


def short(address: str) -> str:
    """Return a PCI address as sysfs writes it: NVML's domain has eight digits."""
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", address.lower())


def open_card(nvml: Any, index: int) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = nvml.nvmlDeviceGetPciInfo(handle).busId
    address = short(pci.decode() if isinstance(pci, bytes) else pci)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return Card(handle, {"index": index, "address": address, "uuid": uuid})


def look(nvml: Any, card: Card) -> None:
    """Read a card's state anew."""
    gpu, state = card.handle, card.state
    state["name"] = told(nvml, "nvmlDeviceGetName", gpu)
    state["persistence"] = named(MODES, told(nvml, "nvmlDeviceGetPersistenceMode", gpu))
    state["compute_mode"] = named(COMPUTE_MODES, told(nvml, "nvmlDeviceGetComputeMode", gpu))
    state["accounting"] = named(MODES, told(nvml, "nvmlDeviceGetAccountingMode", gpu))
    current, pending = told(nvml, "nvmlDeviceGetEccMode", gpu) or (None, None)
    state["ecc_current"], state["ecc"] = named(MODES, current), named(MODES, pending)
    state["retired_pending"] = bool(told(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", gpu))
    look_at_power(nvml, card)
    look_at_clocks(nvml, card)
    running = told(nvml, "nvmlDeviceGetComputeRunningProcesses", gpu) or []
    state["processes"] = [process(card, entry.pid) for entry in running]


def look_at_power(nvml: Any, card: Card) -> None:
    limit = told(nvml, "nvmlDeviceGetPowerManagementLimit", card.handle)
    usual = told(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", card.handle)
    ends = told(nvml, "nvmlDeviceGetPowerManagementLimitConstraints", card.handle)
    known = None not in (limit, usual, ends)
    card.state["power_limit"] = watts(limit) if known else None
    card.state["limits"] = (
        {"default": watts(usual), "min": watts(ends[0]), "max": watts(ends[1])} if known else None
    )


def look_at_clocks(nvml: Any, card: Card) -> None:
    kinds = nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_GRAPHICS
    now = [told(nvml, "nvmlDeviceGetApplicationsClock", card.handle, kind) for kind in kinds]
    usual = [
        told(nvml, "nvmlDeviceGetDefaultApplicationsClock", card.handle, kind) for kind in kinds
    ]
    card.supported = {
        memory: told(nvml, "nvmlDeviceGetSupportedGraphicsClocks", card.handle, memory) or []
        for memory in told(nvml, "nvmlDeviceGetSupportedMemoryClocks", card.handle) or []
    }
    known = None not in (*now, *usual) and any(card.supported.values())
    card.state["application_clocks"] = "{},{}".format(*now) if known else None
    card.state["clocks"] = None
    if known:
        memory = max(card.supported)
        highest = f"{memory},{max(card.supported[memory])}"
        card.state["clocks"] = {"default": "{},{}".format(*usual), "highest": highest}


def process(card: Card, pid: int) -> dict[str, Any]:
    """Return a process' name and systemd unit, empty where they are not told, and all in words."""
    here = Path("/proc", str(pid))
    try:
        name = (here / "comm").read_text().strip()
        units = re.findall(r"/([^/\s]+\.(?:service|scope))$", (here / "cgroup").read_text(), re.M)
    except OSError:
        name, units = "", []
    unit = units[0] if units else ""
    text = f"{card}: {name or 'a process'} (pid {pid}{f' of {unit}' if unit else ''})"
    return {"pid": pid, "name": name, "unit": unit, "text": text}


def open_cards(nvml: Any, chosen: list[str]) -> list[Card]:
    """Return the GPUs chosen."""
    cards, lost, count = [], [], nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            cards.append(open_card(nvml, index))
        except nvml.NVMLError as error:
            lost.append((index, error))
    wanted = [short(name) for name in chosen]
    found = [c for c in cards if not wanted or names(c) & set(wanted)]
    left = set(wanted).difference(*(names(card) for card in cards))
    addresses = missing(cards, len(lost))
    told_lost = [
        gone(nvml, index, address, error)
        for (index, error), address in zip(lost, addresses)  # noqa: B905 (Python 3.9)
        if not wanted or {str(index), address} & left
    ]
    if told_lost:
        raise GpuError(" ".join(told_lost))
    if left:
        here = ", ".join(
            f"{c.state['index']}: {c.state['address']} {c.state['uuid']}" for c in cards
        )
        raise GpuError(f"No GPU here is {' or '.join(sorted(left))}. Here are {here or 'none'}.")
    if not found:
        raise GpuError("NVML finds no GPU: see lspci -d 10de: and journalctl -k -g NVRM.")
    return found


def names(card: Card) -> set[str]:
    state = card.state
    return {str(state["index"]), state["address"], state["uuid"].lower()}


def missing(cards: list[Card], count: int) -> list[str]:
    """Return the addresses of the cards on the bus that NVML does not open, if they are `count`."""
    here = {card.state["address"] for card in cards}
    left = sorted(
        path.name
        for path in Path("/sys/bus/pci/devices").glob("*")
        if path.name not in here
        and (path / "vendor").read_text().strip() == "0x10de"
        and (path / "class").read_text().startswith("0x03")
    )
    return left if len(left) == count else [""] * count


def gone(nvml: Any, index: int, address: str, error: Any) -> str:
    """Return what to say of a card that NVML does not open or read."""
    where = f"GPU {index} ({address})" if address else f"GPU {index}"
    if error.value == nvml.NVML_ERROR_RESET_REQUIRED:
        return f"{where} needs a reset, says NVML: drain the host and reboot it."
    if error.value != nvml.NVML_ERROR_GPU_IS_LOST:
        return f"{where} does not answer: {error}. See journalctl -k -g 'NVRM|Xid' for the reason."
    xids = re.findall(rf"Xid \(PCI:{re.escape(address[:-2])}\): (\d+)", kernel_log())
    last = f" The kernel's last word on it is Xid {xids[-1]}." if address and xids else ""
    return (
        f"{where} is lost: it does not answer on the bus.{last} Drain the host, power it off and on"
        " again (a reboot may not bring the card back), and look at its seat, power and heat if it"
        " recurs."
    )


def kernel_log() -> str:
    try:
        done = subprocess.run(["dmesg"], capture_output=True, check=False)
    except OSError:
        return ""
    return done.stdout.decode(errors="replace")


def judge(card: Card, asked: dict[str, str]) -> tuple[list[str], list[str]]:
    """Set what a card should be; return what of it cannot be, and what the card lacks."""
    problems, notes = [], []
    for name, word in asked.items():
        setting = SETTINGS[name]
        if card.state[name] is None:
            lacks = f"{card} has no {name.replace('_', ' ')} to set"
            if word in setting.modest:
                notes.append(f"{lacks}.")
            else:
                problems.append(f"{lacks}, and {word} was asked for.")
            continue
        try:
            card.targets[name] = setting.target(word, card)
        except GpuError as error:
            problems.append(f"{card}: {error}.")
    return problems, notes


def apply(nvml: Any, card: Card) -> None:
    """Set what differs, and see that it is set."""
    for name, value in card.changes().items():
        try:
            SETTINGS[name].write(nvml, card.handle, value)
        except nvml.NVMLError as error:
            raise GpuError(refusal(nvml, card, f"{name} to {value}", error)) from None
    look(nvml, card)
    for name, value in card.changes().items():
        raise GpuError(
            f"{card} took {name} {value}, and reads {card.state[name]}: something else sets it."
        )


def refusal(nvml: Any, card: Card, what: str, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return (
            f"No permission to set {what} on {card}. Run as root (ansible_user: root, or"
            " ansible_become: true); in a container or a virtual GPU, set it on its host."
        )
    if error.value == nvml.NVML_ERROR_IN_USE:
        users = "; ".join(process["text"] for process in card.state["processes"])
        return (
            f"{card} is in use, and cannot be set ({what}). End what uses it, and run again:"
            f" {users or 'NVML does not tell what'}."
        )
    if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
        return gone(nvml, card.state["index"], card.state["address"], error)
    return f"{card} does not take {what}: {error}."


def reboots(card: Card) -> list[str]:
    """Return what waits, or once it is as it should be would wait, for a reboot."""
    current, coming = card.state["ecc_current"], card.targets.get("ecc", card.state["ecc"])
    reasons = [f"ECC is {current} and will be {coming}"] if coming != current else []
    if card.state["retired_pending"]:
        reasons.append("retired pages wait to be taken out of use")
    return [f"{card}: {' and '.join(reasons)}"] if reasons else []


def drift(cards: list[Card]) -> list[dict[str, str]]:
    """Return Ansible's diffs."""
    return [
        {
            "before_header": str(card),
            "after_header": str(card),
            "before": "".join(f"{name}: {card.state[name]}\n" for name in card.changes()),
            "after": "".join(f"{name}: {value}\n" for name, value in card.changes().items()),
        }
        for card in cards
        if card.changes()
    ]


def volatile(card: Card) -> dict[str, str]:
    """Return what it should be and is not after a boot."""
    return {
        name: value
        for name, value in card.targets.items()
        if SETTINGS[name].boots_as(card) not in (None, value)
    }


def work(params: dict[str, Any], dry: bool) -> dict[str, Any]:
    """Do what is asked; return the module's result."""
    asked = {name: params[name] for name in SETTINGS if params[name] != "keep"}
    nvml = load_nvml(Path(params["pynvml"]))
    cards = open_cards(nvml, params["gpus"])
    problems: list[str] = []
    notes: list[str] = []
    for card in cards:
        try:
            look(nvml, card)
        except nvml.NVMLError as error:
            problems.append(gone(nvml, card.state["index"], card.state["address"], error))
            continue
        wrong, lacking = judge(card, asked)
        problems, notes = problems + wrong, notes + lacking
    if problems:
        raise GpuError(" ".join([*problems, "Nothing was set."]))
    diff = drift(cards)
    reasons = [reason for card in cards for reason in reboots(card)]
    if params["verify"]:
        differ = [
            f"{card}: {', '.join(f'{n} is {card.state[n]}, not {v}' for n, v in off.items())}."
            for card in cards
            if (off := card.changes())
        ]
        differ += [f"{reason}: reboot." for reason in reasons]
        if differ:
            raise GpuError(" ".join(differ))
    elif not dry:
        for card in cards:
            if card.changes():
                apply(nvml, card)
    return {
        "changed": bool(diff),
        "diff": diff,
        "available": True,
        "gpus": [{**card.state, "volatile": volatile(card)} for card in cards],
        "reboot_required": bool(reasons),
        "reboot_reasons": reasons,
        "notes": notes,
    }


def give_up(module: Any) -> None:
    """End the process from beside the thread that waits for NVML in vain."""
    try:
        module.fail_json(
            msg=f"NVML has not answered for {module.params['timeout']} s: the driver hangs. See"
            " journalctl -k -g 'NVRM|Xid' for the card, and reboot the host, by its BMC where it"
            " does not go down."
        )
    finally:
        sys.stdout.flush()
        os._exit(1)


def main() -> None:
    words = {
        "persistence": [*MODES, "keep"],
        "compute_mode": ["default", "exclusive_process", "prohibited", "keep"],
        "ecc": ["auto", *MODES, "keep"],
        "power_limit": None,
        "application_clocks": None,
        "accounting": [*MODES, "keep"],
    }
    module = AnsibleModule(
        argument_spec={
            "pynvml": {"type": "path", "required": True},
            "gpus": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 60},
            "verify": {"type": "bool", "default": False},
            **{
                name: {"type": "str", "default": "keep", **({"choices": some} if some else {})}
                for name, some in words.items()
            },
        },
        supports_check_mode=True,
    )
    asked = [f"{name}: {module.params[name]}\n" for name in SETTINGS]
    asked = [line for line in asked if not line.endswith(" keep\n")]
    patience = threading.Timer(module.params["timeout"], give_up, [module])
    patience.daemon = True
    patience.start()
    try:
        result = work(module.params, module.check_mode)
        for note in result["notes"]:
            module.warn(note)
        module.exit_json(**result)
    except UnavailableError as error:
        if module.params["verify"] or not module.check_mode:
            module.fail_json(msg=str(error), available=False)
        module.exit_json(
            changed=bool(asked),
            available=False,
            msg=f"A check cannot look at the GPUs yet: {error}",
            diff={
                "before": "",
                "after": "".join(asked),
                "after_header": "every GPU, once NVML answers",
            },
        )
    except GpuError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
