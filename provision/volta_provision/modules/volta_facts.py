#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""What the other roles must know of a host before anything is changed on it."""

# Annotations are not evaluated: this must run on an old Python to say that it is old.
from __future__ import annotations

DOCUMENTATION = r"""
module: volta_facts
short_description: What a host offers to a Volta release
description:
  - Finds Volta cards on the PCI bus, the service manager, the Python, and the build tools.
  - Reads only; looks into C(/sys), C(/proc) and the file system.
options:
  root:
    description: >-
      Where Volta is or will be installed; empty means where the service runs from, else the
      default of this user.
    type: path
    default: ""
  volta_devices:
    description: First and last PCI device id of Volta, as hexadecimal strings.
    type: list
    elements: str
    default: []
author: [Volta]
"""
EXAMPLES = r"""
- name: Look at the host
  volta_facts:
    volta_devices: ["1d80", "1dff"]
  register: host
"""
RETURN = r"""
root:
  description: The install root; by default /opt/volta for root, else ~/.local/share/volta.
  type: str
  returned: always
profile:
  description: v100 where a Volta card is on the PCI bus, else cpu.
  type: str
  returned: always
gpus:
  description: PCI addresses of the NVIDIA display and 3D devices.
  type: list
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
python:
  description: Interpreter, its version as C(major.minor), and whether a release can use it.
  type: dict
  returned: always
class:
  description: Hosts of one class share a built wheel, as debian-12-x86_64-cp311.
  type: str
  returned: always
missing_tools:
  description: The tools that every host needs, and this one lacks.
  type: list
  elements: str
  returned: always
missing_packages:
  description: Distribution packages that hold them.
  type: list
  elements: str
  returned: always
missing_build_tools:
  description: The tools that a host needs to build, and this one lacks.
  type: list
  elements: str
  returned: always
missing_build_packages:
  description: Distribution packages that hold them.
  type: list
  elements: str
  returned: always
"""

import importlib.util
import os
import pwd
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
# The Pythons for which the lock knows a torch wheel of every profile.
PYTHONS = ((3, 11), (3, 12), (3, 13))
# A tool: how it is found, and the package that holds it by apt and by dnf.
TOOLS: tuple[tuple[str, Any, str, str], ...] = (
    ("venv", lambda: importlib.util.find_spec("ensurepip"), "python3-venv", "python3"),
)
# What the host that builds needs besides.
BUILD_TOOLS: tuple[tuple[str, Any, str, str], ...] = (
    ("Python headers", lambda: header().exists(), "python3-dev", "python3-devel"),
    ("g++", lambda: shutil.which("g++"), "g++", "gcc-c++"),
    ("cmake", lambda: shutil.which("cmake"), "cmake", "cmake"),
)


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def header() -> Path:
    return Path(sysconfig.get_paths()["include"], "Python.h")


def nvidia_devices(sysfs: Path = Path("/sys/bus/pci/devices")) -> list[tuple[str, str]]:
    """Return (address, device id) of every NVIDIA display or 3D device."""
    return [
        (device.name, read(device / "device"))
        for device in sorted(sysfs.glob("*"))
        if read(device / "vendor") == NVIDIA and read(device / "class")[:6] in DISPLAY_CLASSES
    ]


def has_volta(gpus: list[tuple[str, str]], devices: list[str]) -> bool:
    """Say whether a card's device id lies between the first and the last of `devices`."""
    if not devices:
        return False
    first, last = (int(device, 16) for device in devices)
    return any(first <= int(device, 16) <= last for _address, device in gpus)


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


def host_class(release: str, machine: str) -> str:
    """Return what the binaries of a host depend on; `release` is the text of os-release(5)."""
    fields = dict(re.findall(r"""^(ID|VERSION_ID)=["']?([^"'\n]*)""", release, re.MULTILINE))
    python = "cp{}{}".format(*sys.version_info[:2])
    return "-".join([fields.get("ID", "linux"), fields.get("VERSION_ID", "0"), machine, python])


def missing(tools: tuple[tuple[str, Any, str, str], ...], column: int) -> tuple[list[str], ...]:
    """Return the names of the tools that are not here, and the packages that hold them."""
    absent = [tool for tool in tools if not tool[1]()]
    return [tool[0] for tool in absent], sorted({str(tool[column]) for tool in absent})


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": ""},
            "volta_devices": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    uid = os.getuid()
    home = Path("~").expanduser()
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
    gpus = nvidia_devices()
    column = 3 if shutil.which("dnf") else 2
    tools, packages = missing(TOOLS, column)
    build_tools, build_packages = missing(BUILD_TOOLS, column)
    module.exit_json(
        changed=False,
        uid=uid,
        home=str(home),
        user={"name": user, "lingers": Path("/var/lib/systemd/linger", user).exists()},
        root=str(root),
        gpus=[address for address, _device in gpus],
        profile="v100" if has_volta(gpus, module.params["volta_devices"]) else "cpu",
        manager=manager,
        manager_runs=manager_runs,
        python={
            "path": sys.executable,
            "version": "{}.{}".format(*sys.version_info[:2]),
            "supported": sys.version_info[:2] in PYTHONS,
        },
        missing_tools=tools,
        missing_packages=packages,
        missing_build_tools=build_tools,
        missing_build_packages=build_packages,
        **{"class": host_class(read(Path("/etc/os-release")), os.uname().machine)},
    )


if __name__ == "__main__":
    main()
