#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""What the other roles must know of a host before anything is changed on it."""

# Annotations are not evaluated: this must run on an old Python to say that it is old.
from __future__ import annotations

DOCUMENTATION = r"""
module: volta_facts
short_description: What a host is, and what keeps a server running on it
description:
  - Finds the distribution, the kernels, the NVIDIA cards and drivers, and the service manager.
  - Reads only; looks into C(/sys), C(/proc) and the file system.
options:
  root:
    description: >-
      Where Volta is or will be installed; empty means where the service runs from, else the
      default of this user.
    type: path
    default: ""
  volta:
    description: >-
      Which PCI device ids are Volta's, as hexadecimal strings; C(first_device_id) and
      C(last_device_id) are the block's ends, C(names) are the cards by device id.
    type: dict
    default: {}
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Look at the host
  volta_facts:
    volta: {first_device_id: "1d80", last_device_id: "1dff", names: {"1db6": Tesla V100 PCIe 32GB}}
  register: host
"""
RETURN = r"""
root:
  description: The install root; by default /opt/volta for root, else ~/.local/share/volta.
  type: str
  returned: always
os:
  description: >-
    The distribution as os-release tells it, C(id), C(version), C(major), C(codename), C(pretty),
    its C(family) (debian, redhat or empty) and the machine's C(arch).
  type: dict
  returned: always
kernel:
  description: >-
    The C(running) kernel; the C(next) one, newest with an image in /boot; all C(installed), newest
    first; and which of them have C(headers) to build against.
  type: dict
  returned: always
gpus:
  description: >-
    NVIDIA's display and 3D devices, each with C(address), C(device) id, C(name), whether it is
    C(volta), the C(driver) bound to it, and whether it is C(lost), fallen off the bus.
  type: list
  elements: dict
  returned: always
volta:
  description: Whether a card is a Volta.
  type: bool
  returned: always
profile:
  description: v100 where a Volta card is on the PCI bus, else cpu.
  type: str
  returned: always
nvidia:
  description: >-
    The version of the module that is C(loaded) and whether it is the C(open) one, the version of
    the C(library) libnvidia-ml, and whether a C(runfile) installed the driver.
  type: dict
  returned: always
nouveau:
  description: Whether nouveau is C(loaded), and the addresses of the cards that it has C(bound).
  type: dict
  returned: always
secure_boot:
  description: Whether the kernel takes signed modules only; null where the host does not tell.
  type: bool
  returned: always
container:
  description: Whether the host itself is a container.
  type: bool
  returned: always
manager:
  description: systemd, systemd-user or supervisor; what keeps the server running.
  type: str
  returned: always
manager_runs:
  description: Whether the manager can be asked; a user's systemd runs only with their sessions.
  type: bool
  returned: always
user:
  description: The user's name, and whether their services outlive their sessions (lingering).
  type: dict
  returned: always
"""

import os
import pwd
import re
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

OLDEST_PYTHON = (3, 9)
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
# What a device that no longer answers returns for every read.
LOST = b"\xff\xff\xff\xff"
FAMILIES = {
    "debian": "debian",
    "ubuntu": "debian",
    "rhel": "redhat",
    "rocky": "redhat",
    "almalinux": "redhat",
}
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib")
# What NVIDIA's runfile leaves and no package holds.
RUNFILE = ("usr/bin/nvidia-uninstall", "usr/local/bin/nvidia-uninstall")
# Where UEFI and shim say it, each after four bytes of attributes.
EFI = "sys/firmware/efi"
SECURE_BOOT = f"{EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_DISABLED = f"{EFI}/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
CONTAINER_MARKS = ("run/systemd/container", "run/.containerenv", ".dockerenv")


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def data(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def os_release(host: Path) -> dict[str, str]:
    """Return what the contract calls `os`; a distribution of no known family has an empty one."""
    fields = dict(
        re.findall(r"""^(\w+)=["']?([^"'\n]*)""", read(host / "etc/os-release"), re.MULTILINE)
    )
    name, version = fields.get("ID", ""), fields.get("VERSION_ID", "")
    return {
        "id": name,
        "version": version,
        "major": version.split(".")[0],
        "codename": fields.get("VERSION_CODENAME", ""),
        "family": FAMILIES.get(name, ""),
        "pretty": fields.get("PRETTY_NAME", name),
        "arch": os.uname().machine,
    }


def kernel_order(release: str) -> list[tuple[int, str]]:
    """Return a key that sorts kernel releases by their numbers: 6.1.0-9 before 6.1.0-28."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.\-+_]", release)
    ]


def kernels(host: Path) -> dict[str, Any]:
    """Return the running kernel, the next one, and what can be built for."""
    # Not uname(2), which an emulated personality changes.
    running = read(host / "proc/sys/kernel/osrelease")
    modules = host / "lib/modules"
    installed = sorted(
        (path.name for path in modules.glob("*") if path.is_dir()), key=kernel_order, reverse=True
    )
    bootable = [kernel for kernel in installed if (host / f"boot/vmlinuz-{kernel}").exists()]
    return {
        "running": running,
        "next": bootable[0] if bootable else running,
        "installed": installed,
        "headers": {
            kernel: (modules / kernel / "build").exists() for kernel in {running, *installed}
        },
    }


def gpus(host: Path, volta: dict[str, Any]) -> list[dict[str, Any]]:
    """Return NVIDIA's display and 3D devices in bus order; `volta` says which ids are Volta's."""
    block = range(
        int(volta.get("first_device_id", "1"), 16), int(volta.get("last_device_id", "0"), 16) + 1
    )
    found = []
    for path in sorted((host / "sys/bus/pci/devices").glob("*")):
        if read(path / "vendor") != NVIDIA or read(path / "class")[:6] not in DISPLAY_CLASSES:
            continue
        device = read(path / "device")[2:]
        driver = path / "driver"
        found.append(
            {
                "address": path.name,
                "device": device,
                "volta": int(device, 16) in block,
                "name": volta.get("names", {}).get(device, ""),
                "driver": driver.readlink().name if driver.is_symlink() else "",
                "lost": data(path / "config").startswith(LOST),
            }
        )
    return found


def nvidia_driver(host: Path) -> dict[str, Any]:
    """Return which NVIDIA driver is loaded and which one's library lies on disk."""
    version = read(host / "proc/driver/nvidia/version")
    loaded = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", version)
    library = ""
    for directory in LIBRARIES:
        link = host / directory / "libnvidia-ml.so.1"
        target = re.search(r"\.so\.(\d+\.[\d.]+)$", os.path.realpath(link))
        if link.exists() and target:
            library = target[1]
            break
    return {
        "loaded": loaded[1] if loaded else "",
        "open": "Open Kernel Module" in version,
        "runfile": any((host / mark).exists() for mark in RUNFILE),
        "library": library,
    }


def secure_boot(host: Path, container: bool) -> bool | None:
    """Say whether the kernel takes signed modules only, None where that cannot be read."""
    if not (host / EFI).exists():
        return None if container else False
    state = data(host / SECURE_BOOT)
    if len(state) < 5:
        return None
    return state[4] == 1 and data(host / SHIM_DISABLED)[4:5] != b"\1"


def look(host: Path, volta: dict[str, Any]) -> dict[str, Any]:
    """Return what the machine is, `host` being its root directory."""
    cards = gpus(host, volta)
    container = any((host / mark).exists() for mark in CONTAINER_MARKS)
    return {
        "os": os_release(host),
        "kernel": kernels(host),
        "gpus": cards,
        "volta": any(card["volta"] for card in cards),
        "profile": "v100" if any(card["volta"] for card in cards) else "cpu",
        "nvidia": nvidia_driver(host),
        "nouveau": {
            "loaded": (host / "sys/module/nouveau").exists(),
            "bound": [card["address"] for card in cards if card["driver"] == "nouveau"],
        },
        "secure_boot": secure_boot(host, container),
        "container": container,
    }


def service_manager(uid: int, root: Path, unit: Path, run: Path = Path("/run")) -> tuple[str, bool]:
    """Return what keeps the server running, and whether it can be asked now.

    It is systemd where this user has one, else supervisor. A user's systemd comes and goes with
    their sessions, so a service that is installed stays with the manager that it has.
    """
    if not (run / "systemd/system").is_dir():  # sd_booted(3)
        return "supervisor", True
    if uid == 0:
        return "systemd", True
    runs = (run / f"user/{uid}/systemd/private").exists()
    if unit.exists():
        return "systemd-user", runs
    if runs and not (root / "service/supervisord.conf").exists():
        return "systemd-user", True
    return "supervisor", True


def installed_root(unit: Path) -> Path | None:
    """Return the install root that the unit names, None where there is no such unit."""
    found = re.search(r"^EnvironmentFile=(.+)/current/serve\.env$", read(unit), re.MULTILINE)
    return Path(found[1]) if found else None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": ""},
            "volta": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    if sys.version_info[:2] < OLDEST_PYTHON:
        here, oldest = ("{}.{}".format(*v) for v in (sys.version_info[:2], OLDEST_PYTHON))
        module.fail_json(
            msg=f"{sys.executable} is Python {here}; modules need a minimum of Python {oldest}"
        )
    uid = os.getuid()
    home = Path.home()
    units = Path("/etc/systemd/system") if uid == 0 else home / ".config/systemd/user"
    unit = units / "volta-serve.service"
    installed = installed_root(unit)
    default = Path("/opt/volta") if uid == 0 else home / ".local/share/volta"
    root = Path(module.params["root"] or installed or default)
    if not root.is_absolute():
        module.fail_json(msg=f"preflight_root must be an absolute path, not {root}")
    if installed and installed != root:
        module.fail_json(
            msg=f"the service here runs from {installed}, not from preflight_root {root}: "
            "leave preflight_root out, or remove what is there first (./volta down)"
        )
    user = pwd.getpwuid(uid).pw_name
    manager, manager_runs = service_manager(uid, root, unit)
    module.exit_json(
        changed=False,
        uid=uid,
        home=str(home),
        user={"name": user, "lingers": Path("/var/lib/systemd/linger", user).exists()},
        root=str(root),
        **look(Path("/"), module.params["volta"]),
        manager=manager,
        manager_runs=manager_runs,
    )


if __name__ == "__main__":
    main()
