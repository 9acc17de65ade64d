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
author: [Volta]
"""
EXAMPLES = r"""
- name: Look at the host
  volta_facts:
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
nvcc:
  description: A CUDA compiler that makes sm_70 (path, release), or null.
  type: dict
  returned: always
other_nvcc:
  description: CUDA compilers found that do not make sm_70.
  type: list
  returned: always
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
# Volta's device ids: TITAN V 1d81, V100 1db0 to 1dbf, V100S and V100-SXM3 1df5 and 1df6.
VOLTA_DEVICES = {"0x1d81", "0x1df5", "0x1df6"} | {f"0x1db{low:x}" for low in range(16)}
# The Pythons for which the lock knows a torch wheel of every profile.
PYTHONS = ((3, 11), (3, 12), (3, 13))
# nvcc releases that make sm_70: CUDA 9.0 brought it, 13.0 dropped it.
NVCC_FIRST, NVCC_BEYOND = (9, 0), (13, 0)
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


def service_manager(uid: int) -> str:
    """Return what will keep the server running: systemd where it is PID 1, else supervisor."""
    if read(Path("/proc/1/comm")) != "systemd":
        return "supervisor"
    if uid == 0:
        return "systemd"
    return "systemd-user" if Path(f"/run/user/{uid}/systemd/private").exists() else "supervisor"


def compilers() -> list[dict[str, Any]]:
    """Return path, release and whether it makes sm_70 of every nvcc in the usual places."""
    places = [Path("/usr/bin/nvcc"), *sorted(Path("/usr/local").glob("cuda*/bin/nvcc"))]
    on_path = shutil.which("nvcc")
    found = {}
    for path in places + ([Path(on_path)] if on_path else []):
        if not os.access(path, os.X_OK):
            continue
        try:
            version = subprocess.run([path, "--version"], capture_output=True, timeout=10).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        match = re.search(rb"release (\d+)\.(\d+)", version)
        if match:
            release = (int(match.group(1)), int(match.group(2)))
            found[str(path)] = {
                "path": str(path),
                "release": "{}.{}".format(*release),
                "sm_70": NVCC_FIRST <= release < NVCC_BEYOND,
            }
    return list(found.values())


def main() -> None:
    module = AnsibleModule(
        argument_spec={"root": {"type": "str", "default": ""}}, supports_check_mode=True
    )
    uid = os.getuid()
    home = Path("~").expanduser()
    default = Path("/opt/volta") if uid == 0 else home / ".local/share/volta"
    gpus = nvidia_devices()
    column = 3 if shutil.which("dnf") else 2
    missing = [tool for tool in TOOLS if not tool[1]()]
    nvcc = compilers()
    usable = [compiler for compiler in nvcc if compiler["sm_70"]]
    module.exit_json(
        changed=False,
        uid=uid,
        home=str(home),
        root=module.params["root"] or str(default),
        gpus=[address for address, _device in gpus],
        profile="v100" if any(device in VOLTA_DEVICES for _, device in gpus) else "cpu",
        manager=service_manager(uid),
        python={
            "path": sys.executable,
            "version": "{}.{}".format(*sys.version_info[:2]),
            "supported": sys.version_info[:2] in PYTHONS,
        },
        missing_tools=[tool[0] for tool in missing],
        missing_packages=sorted({str(tool[column]) for tool in missing}),
        nvcc=usable[0] if usable else None,
        other_nvcc=[compiler for compiler in nvcc if not compiler["sm_70"]],
    )


if __name__ == "__main__":
    main()
