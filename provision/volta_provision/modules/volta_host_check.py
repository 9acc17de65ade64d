#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""What keeps a host from being made right, judged before anything is changed on it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_host_check
short_description: Judge whether a host can be made right
description:
  - Judges what M(volta.stack.volta_facts) told, and who else keeps a driver on the host.
  - Reads only, and never fails for what it finds; M(volta.stack.volta_preflight) refuses the host
    with all of its problems in one message.
options:
  host:
    description: What M(volta.stack.volta_facts) returned.
    type: dict
    required: true
  driver:
    description: Whether the driver is to be installed and kept by this play.
    type: bool
    default: false
  install_tools:
    description: Whether missing packages may be installed.
    type: bool
    default: true
  expected_gpus:
    description: How many Volta cards the host should have; 0 for any number.
    type: int
    default: 0
  other_gpus:
    description: What NVIDIA cards that are no Volta mean, C(refuse) or C(ignore).
    type: str
    choices: [refuse, ignore]
    default: refuse
  systems:
    description: The distributions that the driver can be kept on, a list of versions, or of
      their first parts, by id.
    type: dict
    default: {}
  cards:
    description: >-
      What cards are called that are no Volta, C(names) by device id, and C(generations), a list of
      the first and the last device id of a block and the generation's name.
    type: dict
    default: {}
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Judge the host
  volta_host_check:
    host: "{{ preflight_host }}"
    driver: true
    systems: {debian: ["12", "13"]}
  register: checked
"""
RETURN = r"""
problems:
  description: What is wrong, each with its remedy.
  type: list
  elements: str
  returned: always
driver_installed:
  description: Whether packages of a driver are here.
  type: bool
  returned: always
toolkit_installed:
  description: Whether an nvcc is here.
  type: bool
  returned: always
"""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

# Packages that hold kernel modules, in Debian's, Ubuntu's, NVIDIA's and RPM Fusion's names.
MODULE_PACKAGE = re.compile(
    r"^(nvidia-(\S+-)?(kernel(-open)?-dkms|dkms-\S+)|nvidia-kernel-\S*dkms"
    r"|linux-modules-nvidia-\d\S*|a?kmod-nvidia\S*)$"
)
# Apt sources of drivers whose packages have the names of Ubuntu's own.
PPA = re.compile(r"^[^#\n]*(ppa\.launchpad(?:content)?\.net/(graphics-drivers\S*))", re.MULTILINE)
# Where Kubernetes' GPU Operator mounts the driver that its container keeps.
OPERATOR = "run/nvidia/driver"
DKMS_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
ENROLLED_KEYS = "sys/firmware/efi/efivars/MokListRT*"
NVCC = ("usr/bin/nvcc", "usr/local/cuda*/bin/nvcc")
HEADERS = {"debian": "linux-headers-", "redhat": "kernel-devel-"}
NEWEST_KERNEL = {
    "debian": "linux-image-amd64 linux-headers-amd64",
    "ubuntu": "linux-image-generic linux-headers-generic",
}
# Package lists older than this may miss what the mirror has by now.
FRESH_LISTS_S = 24 * 3600


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def data(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def output(*command: str) -> str:
    """Return what a program prints, nothing where it is not here or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def module_packages(root: Path) -> dict[str, str]:
    """Return the installed packages that hold NVIDIA's kernel modules, with their versions."""
    found = {}
    for stanza in read(root / "var/lib/dpkg/status").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.+)$", stanza, re.MULTILINE))
        # A package that dpkg was killed over is the driver's to finish, not a conflict.
        if fields.get("Status", "").endswith(" ok installed"):
            found[fields["Package"]] = fields.get("Version", "")
    if (root / "var/lib/rpm").is_dir() and not found:
        listed = output("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}\n")
        found = dict(line.split(" ", 1) for line in listed.splitlines())
    return {name: version for name, version in found.items() if MODULE_PACKAGE.match(name)}


def ppa_files(root: Path) -> list[str]:
    """Return the apt sources that name a PPA of drivers."""
    apt = root / "etc/apt"
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.*"))]
    return [f"/{path.relative_to(root)}" for path in files if PPA.search(read(path))]


def key_enrolled(root: Path) -> bool:
    """Say whether shim trusts a key that DKMS signs with; both are DER, one within the other."""
    lists = b"".join(data(path) for path in sorted(root.glob(ENROLLED_KEYS)))
    return any(key in lists for key in (data(root / path) for path in DKMS_KEYS) if key)


def headers_offered(family: str, kernel: str) -> bool | None:
    """Say whether the mirror has a kernel's headers, None where the lists do not tell."""
    if family == "debian":
        lists = Path("/var/lib/apt/lists")
        times = [path.stat().st_mtime for path in (lists, lists / "partial") if path.exists()]
        if not list(lists.glob("*_Packages*")) or time.time() - max(times) > FRESH_LISTS_S:
            return None
        return bool(output("apt-cache", "show", "--no-all-versions", HEADERS[family] + kernel))
    return None


def look(root: Path, host: dict[str, Any]) -> dict[str, Any]:
    """Return what the judgement needs besides what volta_facts told."""
    kernel = host["kernel"]
    lacking = [
        name
        for name in dict.fromkeys((kernel["running"], kernel["next"]))
        if not kernel["headers"].get(name)
    ]
    family = host["os"]["family"]
    return {
        "packages": module_packages(root),
        "ppa": ppa_files(root),
        "operator": (root / OPERATOR / "usr").is_dir(),
        "key_enrolled": key_enrolled(root),
        "no_headers": [name for name in lacking if headers_offered(family, name) is False],
    }


def describe(card: dict[str, Any], cards: dict[str, Any]) -> str:
    """Return a card's name and generation, as far as they are known: T4 (Turing)."""
    if card["name"]:
        return str(card["name"])
    number = int(card["device"], 16)
    blocks = cards.get("generations", [])
    generation = next((g for a, z, g in blocks if int(a, 16) <= number <= int(z, 16)), "")
    name = cards.get("names", {}).get(card["device"], "")
    if name and generation:
        return f"{name} ({generation})"
    return name or f"{generation or 'NVIDIA'} card of device id {card['device']}"


def name_cards(found: list[dict[str, Any]], cards: dict[str, Any]) -> str:
    """Return which cards these are and where: a T4 (Turing) at …, 2 x A100 (Ampere) at … and …."""
    places: dict[str, list[str]] = {}
    for card in found:
        places.setdefault(describe(card, cards), []).append(card["address"])
    return ", ".join(
        f"{'a' if len(at) == 1 else f'{len(at)} x'} {kind} at {' and '.join(at)}"
        for kind, at in places.items()
    )


def judge_cards(p: dict[str, Any]) -> list[str]:
    """Judge which cards are here, and whether they answer."""
    host, expected = p["host"], p["expected_gpus"]
    ours = [card for card in host["gpus"] if card["volta"]]
    others = [card for card in host["gpus"] if not card["volta"]]
    problems = [
        f"the GPU at {card['address']}, a {describe(card, p['cards'])}, has fallen off the bus: its"
        " configuration space reads ff. Switch the host off for a minute and on again; if it comes"
        " back so, reseat the card and its power cables"
        for card in host["gpus"]
        if card["lost"]
    ]
    if others and p["other_gpus"] == "refuse":
        named = name_cards(others, p["cards"])
        leave = "set preflight_other_gpus: ignore for this host"
        if ours:
            problems.append(
                f"beside {len(ours)} Volta there is {named}: what is built here runs on Volta only."
                f" Take the other card out, or {leave} and keep the server off it by"
                " CUDA_VISIBLE_DEVICES"
            )
        else:
            problems.append(
                f"this is {named}, not a V100: Volta's driver, kernels and model formats are made"
                f" for V100s. Take the host out of the group volta, or {leave} to serve from its"
                " CPUs"
            )
    here = len(ours)
    if expected and here != expected:
        seen = ", ".join(card["address"] for card in ours) or "none"
        problems.append(
            f"{expected} Volta cards are expected, and on the PCI bus there are {here} ({seen}): "
            + (
                "reseat what is missing, check its power cables and its slot in the firmware's"
                " setup, and start the host cold"
                if here < expected
                else "the host has more than it was said to"
            )
            + f"; or set preflight_expected_gpus to {here}"
        )
    return problems


def judge_release_tools(p: dict[str, Any]) -> list[str]:
    """Judge whether a release can be made and kept running by this user."""
    host, problems = p["host"], []
    python, user = host["python"], host["user"]["name"]
    may_install = host["uid"] == 0 and p["install_tools"]
    packages = " ".join(host["missing_packages"])
    if not python["supported"] and not (may_install and python["package"]):
        remedy = f"install {packages}" if packages else "install one of them"
        problems.append(
            f"{python['path']} is Python {python['version']}, and a release needs 3.11, 3.12 or"
            f" 3.13: {remedy}, or name one by ansible_python_interpreter"
        )
    elif host["missing_tools"] and not may_install:
        problems.append(
            f"missing on this host: {', '.join(host['missing_tools'])}: install {packages}"
        )
    if not host["manager_runs"]:
        problems.append(
            f"the service of {user} runs under their own systemd, which is not here in this"
            " session: log in as that user (over ssh, not by su), or as root: loginctl"
            f" enable-linger {user}"
        )
    return problems


def judge_system(host: dict[str, Any], systems: dict[str, list[str]]) -> list[str]:
    """Judge whether drivers can be had for this distribution."""
    system = host["os"]
    known = ", ".join(f"{name} {' and '.join(versions)}" for name, versions in systems.items())
    if not {system["major"], system["version"]}.intersection(systems.get(system["id"], [])):
        return [
            f"this is {system['pretty'] or 'a system without os-release'}, and the driver is kept"
            f" on {known}: install one of these, or set driver_manage: false and keep the driver"
            " yourself"
        ]
    if system["arch"] != "x86_64":
        return [
            f"this is a machine of {system['arch']}, for which there is no driver R580: set"
            " driver_manage: false and keep an older driver yourself"
        ]
    return []


def judge_owners(host: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    """Judge who else keeps a driver here."""
    remove = "dnf remove" if host["os"]["family"] == "redhat" else "apt-get purge"
    own = "or set driver_manage: false to leave the driver to it"
    problems = []
    if host["nvidia"]["runfile"]:
        problems.append(
            "NVIDIA's runfile installed a driver here (it left nvidia-uninstall): packages would"
            " mix with its files. Run nvidia-uninstall --silent, reboot, and run again; " + own
        )
    if seen["operator"]:
        problems.append(
            f"Kubernetes' GPU Operator keeps the driver here (its container's is at /{OPERATOR})."
            " Set driver.enabled=false in its ClusterPolicy, drain and reboot the node; " + own
        )
    if seen["ppa"]:
        problems.append(
            f"{', '.join(seen['ppa'])} names the PPA graphics-drivers, whose packages have the"
            " names of Ubuntu's and jump from branch to branch. Remove it (add-apt-repository"
            f" --remove ppa:graphics-drivers/ppa); {own}"
        )
    packages = {name: v.split(":")[-1] for name, v in sorted(seen["packages"].items())}
    for_open = [name for name in packages if "-open" in name]
    if for_open:
        problems.append(
            f"{', '.join(f'{n} {packages[n]}' for n in for_open)} brings the open kernel modules,"
            " which cannot drive Volta (it has no GPU System Processor):"
            f" {remove} {' '.join(for_open)}"
        )
    branches = {v.split(".")[0] for n, v in packages.items() if n not in for_open}
    if len(branches) > 1:
        listed = ", ".join(f"{n} {v}" for n, v in packages.items() if n not in for_open)
        problems.append(
            f"kernel modules of branches {' and '.join(sorted(branches))} are installed side by"
            f" side: {listed}. {remove} those of all but one"
        )
    return problems


def judge_kernel(host: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    """Judge whether modules can be built for the kernel, and whether it would take them."""
    problems = []
    for kernel in seen["no_headers"]:
        package = HEADERS[host["os"]["family"]] + kernel
        problems.append(
            f"the mirror has no {package}, so no driver can be built for the kernel {kernel}:"
            " install the newest one with its headers (apt-get install"
            f" {NEWEST_KERNEL[host['os']['id']]}) and reboot into it"
        )
    if host["secure_boot"] and not host["nvidia"]["loaded"] and not seen["key_enrolled"]:
        signed = (
            "; or install Ubuntu's signed modules (linux-modules-nvidia-580-server-generic)"
            if host["os"]["id"] == "ubuntu"
            else ""
        )
        problems.append(
            "Secure Boot is on and no key that DKMS signs with is enrolled: the kernel would reject"
            " the driver's modules (Key was rejected by service). Switch Secure Boot off in the"
            f" firmware's setup; or enrol a key: mokutil --import /{DKMS_KEYS[0]} (where it is not"
            " there yet: apt-get install dkms mokutil, dkms generate_mok), reboot, and confirm it"
            f" at the console under Enroll MOK{signed}"
        )
    return problems


def judge(p: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    """Return every problem of the host; `seen` is what `look` returned."""
    host, problems = p["host"], [*judge_release_tools(p), *judge_cards(p)]
    if p["driver"] and host["volta"] and host["uid"] == 0:
        problems += judge_system(host, p["systems"])
        problems += judge_owners(host, seen)
        problems += judge_kernel(host, seen)
    return problems


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "dict", "required": True},
            "driver": {"type": "bool", "default": False},
            "install_tools": {"type": "bool", "default": True},
            "expected_gpus": {"type": "int", "default": 0},
            "other_gpus": {"type": "str", "choices": ["refuse", "ignore"], "default": "refuse"},
            "systems": {"type": "dict", "default": {}},
            "cards": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    seen = look(Path("/"), module.params["host"])
    module.exit_json(
        changed=False,
        problems=judge(module.params, seen),
        driver_installed=bool(seen["packages"]),
        toolkit_installed=any(list(Path("/").glob(place)) for place in NVCC),
    )


if __name__ == "__main__":
    main()
