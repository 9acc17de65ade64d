"""The rest of a fake host: a tree of files for the doctor's $VOLTA_DOCTOR_SYSROOT."""

import shlex
from pathlib import Path
from typing import Any

from fakesmi import to_xml
from snapshots import Fake

KERNEL = "6.1.0-40-amd64"
_NVSWITCH = "0x1ac2"
# `uname`, /etc and /proc of a Debian 12 with a proprietary driver.
_FILES = {
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "etc/fstab": "",
    "proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=/dev/sda1 ro quiet\n",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme de pse tsc avx2\n",
    "proc/meminfo": (
        "MemTotal:       527988316 kB\nMemFree:        501234560 kB\n"
        "MemAvailable:   511234560 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n"
        "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
    ),
    "proc/stat": "cpu  1 0 1 100 0 0 0 0 0 0\nbtime 1795000000\n",
    "proc/uptime": "40000.00 300000.00\n",
    "proc/vmstat": "pswpin 0\npswpout 0\noom_kill 0\n",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "proc/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\n",
    "proc/sys/kernel/osrelease": f"{KERNEL}\n",
    "proc/sys/kernel/hostname": "rack-1\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    f"lib/modules/{KERNEL}/modules.dep": "updates/dkms/nvidia.ko:\n",
    f"lib/modules/{KERNEL}/modules.builtin": "",
}
_MODINFO = "version: {driver}\nlicense: NVIDIA\nsigner: DKMS module signing key\n"
_DMESG = f"[    0.000000] Linux version {KERNEL}\n[    4.512000] nvidia: loading NVIDIA UNIX\n"


def make_tree(root: Path, fake: Fake, library: Path) -> Path:
    """Write the host's files; `library` becomes its libnvidia-ml.so.1."""
    driver = fake.nvml["driver_version"]
    driver = driver if isinstance(driver, str) else "580.95.05"
    files = {
        **_FILES,
        "sys/module/nvidia/initstate": "live\n",
        "sys/module/nvidia_uvm/initstate": "live\n",
        "proc/driver/nvidia/version": (
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Sep 23 10:11:16 UTC"
            " 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
        ),
        "dev/nvidiactl": "",
    }
    for gpu in fake.nvml.get("gpus", []):
        if "pci" not in gpu:  # NVML does not open it
            continue
        files |= _pci(gpu["pci"]["bus_id"], f"0x{gpu['pci']['device_id'][2:6].lower()}", "0x030200")
        files[f"dev/nvidia{gpu['index']}"] = ""
        for name, facts in (("numa_node", "nodes"), ("local_cpulist", "cpus")):
            if value := fake.topo.get(facts):
                files[f"{_device(gpu['pci']['bus_id'])}/{name}"] = f"{value[gpu['index']]}\n"
    for number, bus_id in enumerate(fake.topo.get("switches", [])):
        files |= _pci(bus_id, _NVSWITCH, "0x068000")
        files[f"proc/driver/nvidia-nvswitch/devices/{bus_id}"] = f"{number}\n"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    for gpu in devices.iterdir():
        (gpu / "driver").symlink_to("../../drivers/nvidia")
    (root / "tmp").mkdir()
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / f"libnvidia-ml.so.{driver}").write_bytes(library.read_bytes())
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{driver}")
    said, code = fake.smi.get("output", ""), fake.smi.get("exit_code", 0)
    if not said and "error" not in fake.nvml.get("init_error", ()):
        said = to_xml(fake.nvml)
    command(root, "nvidia-smi", said, code, only="-q -x")
    command(root, "modinfo", _MODINFO.format(driver=driver))
    command(root, "dmesg", _DMESG)
    return root


def command(root: Path, name: str, output: str, code: int = 0, only: str = "") -> None:
    """A program of the host that prints `output`; asked anything but `only`, it fails with 2."""
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    text = root / f"usr/share/fake/{name}"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(output)
    path = root / f"usr/bin/{name}"
    refusal = f'[ "$*" = {shlex.quote(only)} ] || exit 2\n' if only else ""
    path.write_text(f"#!/bin/sh\n{refusal}/bin/cat {shlex.quote(str(text))}\nexit {code}\n")
    path.chmod(0o755)


def _device(bus_id: str) -> str:
    """sysfs writes four digits of the domain where NVML writes eight, and all of it small."""
    return f"sys/bus/pci/devices/{bus_id[4:].lower()}"


def _pci(bus_id: str, device: str, pci_class: str) -> dict[str, Any]:
    here = _device(bus_id)
    return {
        f"{here}/vendor": "0x10de\n",
        f"{here}/device": f"{device}\n",
        f"{here}/class": f"{pci_class}\n",
    }
