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
    description: Where Volta is or will be installed; empty means the default of this user.
    type: str
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
  description: The install root, /opt/volta for root, else ~/.local/share/volta.
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
  description: systemd, systemd-user or supervisor.
  type: str
  returned: always
python:
  description: Interpreter, its version as C(major.minor), and whether a release can use it.
  type: dict
  returned: always
missing_packages:
  description: Distribution packages that hold the build tools this host lacks.
  type: list
  returned: always
"""

import importlib.util
import os
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
# A build tool: how it is found, and the package that holds it by apt and by dnf.
TOOLS: tuple[tuple[str, Any, str, str], ...] = (
    ("Python headers", lambda: header().exists(), "python3-dev", "python3-devel"),
    ("venv", lambda: importlib.util.find_spec("ensurepip"), "python3-venv", "python3"),
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


def service_manager(uid: int) -> str:
    """Return what will keep the server running: systemd where it is PID 1, else supervisor."""
    if read(Path("/proc/1/comm")) != "systemd":
        return "supervisor"
    if uid == 0:
        return "systemd"
    return "systemd-user" if Path(f"/run/user/{uid}/systemd/private").exists() else "supervisor"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "str", "default": ""},
            "volta_devices": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    uid = os.getuid()
    home = Path("~").expanduser()
    default = Path("/opt/volta") if uid == 0 else home / ".local/share/volta"
    gpus = nvidia_devices()
    column = 3 if shutil.which("dnf") else 2
    missing = [tool for tool in TOOLS if not tool[1]()]
    module.exit_json(
        changed=False,
        uid=uid,
        home=str(home),
        root=module.params["root"] or str(default),
        gpus=[address for address, _device in gpus],
        profile="v100" if has_volta(gpus, module.params["volta_devices"]) else "cpu",
        manager=service_manager(uid),
        python={
            "path": sys.executable,
            "version": "{}.{}".format(*sys.version_info[:2]),
            "supported": sys.version_info[:2] in PYTHONS,
        },
        missing_tools=[tool[0] for tool in missing],
        missing_packages=sorted({str(tool[column]) for tool in missing}),
    )


if __name__ == "__main__":
    main()
