#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Which NVIDIA module is on disk for each kernel, and which is loaded. Reads only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_kmod
short_description: Compare a host's NVIDIA kernel module with the one wanted
description:
  - Looks at the modules built for the running and the next kernel, at their initramfs, at the
    loaded module and at nouveau, and changes nothing.
options:
  version:
    description: The version to be built and loaded; empty where it is not known yet.
    type: str
    required: true
  kernels:
    description: Kernels that need a module.
    type: list
    elements: str
    required: true
  blacklist:
    description: The file that keeps nouveau off; an initramfs must not be older.
    type: path
    required: true
  load:
    description: Whether the module must be loaded.
    type: bool
    default: true
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Look at the kernel's module
  volta_kmod:
    version: 580.95.05
    kernels: ["{{ host.kernel.running }}", "{{ host.kernel.next }}"]
    blacklist: /etc/modprobe.d/volta-driver.conf
  register: kmod
"""
RETURN = r"""
todo:
  description: Sentences by what is not as it should be (modules, initramfs, load).
  type: dict
  returned: always
unbuilt:
  description: Kernels without the wanted module.
  type: list
  elements: str
  returned: always
dkms:
  description: DKMS's name of the module with its version, empty where DKMS does not know it.
  type: str
  returned: always
initramfs:
  description: Kernels whose initramfs is older than the blacklist.
  type: list
  elements: str
  returned: always
loaded:
  description: Version of the loaded module, or empty.
  type: str
  returned: always
unload:
  description: The loaded NVIDIA modules, in the order in which they can be removed.
  type: list
  elements: str
  returned: always
nouveau:
  description: Whether nouveau is loaded.
  type: bool
  returned: always
reboot:
  description: What is loaded in the place of the wanted module, and so may need a reboot to go.
  type: list
  elements: str
  returned: always
"""

import re
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

# The modules of a driver: each before those that it needs.
UNLOADED = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def module_name(root: Path = Path("/")) -> str:
    """Return what `modprobe nvidia` loads: Debian names it nvidia-current by an install line."""
    for directory in ("etc/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d"):
        for file in sorted((root / directory).glob("*.conf")):
            if found := re.search(r"^install nvidia modprobe -i (\S+)", read(file), re.MULTILINE):
                return found[1]
    return "nvidia"


def on_disk(kernel: str) -> str:
    """Return the version of the module that lies there for a kernel, empty for none."""
    command = ["modinfo", "-k", kernel, "-F", "version", module_name()]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # kmod comes with the headers and DKMS
        return ""


def log_end(version: str, kernel: str, tree: Path = Path("/var/lib/dkms")) -> str:
    """Return what DKMS's log of a failed build ends with: its errors, else its last lines."""
    logs = sorted(tree.glob(f"nvidia*/{version}/build/make.log"))
    logs += sorted(tree.glob(f"nvidia*/{version}/{kernel}/*/log/make.log"))
    for log in logs:
        lines = [line.strip() for line in read(log).splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"error:|No space left|not found", line)]
        return f"{log} ends: {' | '.join((errors or lines)[-3:])}"
    return ""


def nouveau_cards(bus: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    return [d.name for d in sorted(bus.glob("*")) if (d / "driver").resolve().name == "nouveau"]


def stale_initramfs(kernels: list[str], blacklist: Path, root: Path = Path("/")) -> list[str]:
    """Return the kernels whose initramfs was made before nouveau was kept off."""
    if not blacklist.exists():
        return []
    written = blacklist.stat().st_mtime
    names = ("boot/initrd.img-{}", "boot/initramfs-{}.img")
    images = {kernel: [root / name.format(kernel) for name in names] for kernel in kernels}
    return [
        kernel
        for kernel, paths in images.items()
        if any(path.exists() and path.stat().st_mtime < written for path in paths)
    ]


def loaded_modules(root: Path = Path("/")) -> list[str]:
    """Return the names of the loaded modules; what is built into the kernel has no initstate."""
    return [path.parent.name for path in root.glob("sys/module/*/initstate")]


def in_the_way(wanted: str, root: Path = Path("/")) -> tuple[str, bool, list[str]]:
    """Return (loaded version, nouveau is loaded, what is loaded in the wanted module's place)."""
    text = read(root / "proc/driver/nvidia/version")
    found = VERSION.search(text)
    loaded, reasons = found[0] if found else "", []
    cards = nouveau_cards(root / "sys/bus/pci/devices")
    nouveau = bool(cards) or "nouveau" in loaded_modules(root)
    if nouveau:
        reasons.append(f"nouveau is loaded and drives {', '.join(cards) or 'no card'}")
    if "Open Kernel" in text:
        reasons.append(f"the open modules {loaded} are loaded, which cannot drive a V100")
    elif loaded not in ("", wanted):
        reasons.append(f"module {loaded} is loaded, not {wanted or 'the wanted one'}")
    return loaded, nouveau, reasons


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "kernels": {"type": "list", "elements": "str", "required": True},
            "blacklist": {"type": "path", "required": True},
            "load": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    wanted, kernels = module.params["version"], list(dict.fromkeys(module.params["kernels"]))
    disk = {kernel: on_disk(kernel) for kernel in kernels}
    unbuilt = [kernel for kernel in kernels if not wanted or disk[kernel] != wanted]
    initramfs = stale_initramfs(kernels, Path(module.params["blacklist"]))
    loaded, nouveau, reasons = in_the_way(wanted)
    todo: dict[str, Any] = {}
    if unbuilt:
        todo["modules"] = "; ".join(
            f"kernel {kernel} has {disk[kernel] or 'no nvidia module'}"
            f" where {wanted or 'one'} is wanted. {log_end(wanted, kernel)}".rstrip(". ")
            for kernel in unbuilt
        )
    if initramfs:
        todo["initramfs"] = f"older than the blacklist of nouveau: {', '.join(initramfs)}"
    if module.params["load"] and (reasons or not loaded):
        todo["load"] = "; ".join(reasons or ["no nvidia module is loaded"])
    tree = Path("/var/lib/dkms").glob(f"nvidia*/{wanted or '-'}")
    module.exit_json(
        changed=False,
        todo=todo,
        unbuilt=unbuilt,
        dkms=next((f"{path.parent.name}/{wanted}" for path in tree), ""),
        initramfs=initramfs,
        loaded=loaded,
        unload=[name for name in UNLOADED if name in loaded_modules()],
        nouveau=nouveau,
        reboot=reasons if module.params["load"] else [],
    )


if __name__ == "__main__":
    main()
