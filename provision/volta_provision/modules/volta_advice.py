#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""What only the firmware's setup or the kernel's command line can mend, as advice."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_advice
short_description: Advise on the IOMMU and on access control between GPUs
description:
  - Looks at the kernel's command line and at the PCI bridges above the GPUs, and changes nothing.
  - A virtual machine gets no advice, for both are its host's.
options:
  gpus:
    description: The PCI addresses of the GPUs.
    type: list
    elements: str
    required: true
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Look at what slows copies between GPUs
  volta_advice:
    gpus: ["0000:3b:00.0", "0000:5e:00.0"]
  register: seen
"""
RETURN = r"""
advice:
  description: What should be changed, and how.
  type: list
  elements: str
  returned: always
"""

import re
import struct
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# PCI Express Base Specification: where extended capabilities begin, and Access Control Services.
FIRST_CAPABILITY = 0x100
ACS = 0x000D
# Bits of its control register that send what one GPU writes to another up to the CPU.
REDIRECTING = 1 << 0 | 1 << 2  # source validation, request redirect


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def bridges(root: Path, addresses: list[str]) -> list[Path]:
    """Return the bridges above these devices, by their directories in sysfs."""
    found: dict[str, Path] = {}
    for address in addresses:
        device = (root / "sys/bus/pci/devices" / address).resolve()
        for parent in device.parents:
            if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", parent.name):
                found[parent.name] = parent
    return [found[name] for name in sorted(found)]


def redirects(config: bytes) -> bool:
    """Say whether a bridge's configuration space has access control redirect what peers write."""
    offset, seen = FIRST_CAPABILITY, set()
    while offset >= FIRST_CAPABILITY and offset not in seen and offset + 8 <= len(config):
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return bool(control & REDIRECTING)
        offset = header >> 20
    return False


def advise_iommu(cmdline: str) -> list[str]:
    """A translating IOMMU breaks or slows copies between GPUs."""
    options = [option.partition("=") for option in cmdline.split()]
    values = {f"{name}={value}" for name, _, given in options for value in given.split(",")}
    on = sorted(values & {"intel_iommu=on", "amd_iommu=on"})
    if not on or values & {"iommu=pt", "iommu.passthrough=1"}:
        return []
    return [
        f"The kernel's command line has {on[0]} without iommu=pt, so copies between GPUs go through"
        " the IOMMU. Add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub (RHEL:"
        " grubby --update-kernel=ALL --args=iommu=pt), and reboot."
    ]


def advise_acs(root: Path, addresses: list[str]) -> list[str]:
    """Access control matters where one GPU writes to another."""
    if len(addresses) < 2:
        return []
    above = bridges(root, addresses)
    bad = [bridge.name for bridge in above if redirects((bridge / "config").read_bytes())]
    if not bad:
        return []
    return [
        f"Access control (ACS) redirects what GPUs write to each other at {len(bad)} of"
        f" {len(above)} bridges above them: {', '.join(bad)}. Switch it off in the firmware's setup"
        " (ACS, or with it VT-d or AMD-Vi), or after each boot by setpci -s ADDRESS ECAP_ACS+6.w=0."
    ]


def main() -> None:
    module = AnsibleModule(
        argument_spec={"gpus": {"type": "list", "elements": "str", "required": True}},
        supports_check_mode=True,
    )
    root, gpus = Path("/"), module.params["gpus"]
    advice: list[str] = []
    if not re.search(r"^flags\s*:.*\bhypervisor\b", read(root / "proc/cpuinfo"), re.MULTILINE):
        advice = advise_iommu(read(root / "proc/cmdline")) + advise_acs(root, gpus)
    module.exit_json(changed=False, advice=advice)


if __name__ == "__main__":
    main()
