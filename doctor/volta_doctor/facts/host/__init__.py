"""The `host` section: operating system, kernel, virtualisation, Secure Boot, memory, boot time."""

import contextlib
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from volta_doctor.facts import serve
from volta_doctor.facts.host import disks, memory
from volta_doctor.facts.host.disks import FileSystem
from volta_doctor.facts.host.memory import HugePages, NumaNode, Swap
from volta_doctor.probe import CannotLook, Probe

T = TypeVar("T")

SHM = "/dev/shm"  # noqa: S108 - looked at, not written
_MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's own default, not a file of ours
# What a dead file server or a stuck server process may cost the rest of the section.
_SERVERS_S = 5.0
LIMIT_S = memory.LONG_SAMPLE_S + 2 * _SERVERS_S + 3

_EFI = "/sys/firmware/efi"
_EFIVARS = f"{_EFI}/efivars"
_PRODUCT_NAME = "/sys/class/dmi/id/product_name"
# Vendor GUIDs of the UEFI specification and of shim.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM_DISABLED = "MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"


# What runtimes leave behind where no systemd of the container's own tells their name.
_CONTAINER_MARKS = {
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/run/secrets/kubernetes.io": "kubernetes",
}


class ContainerShm(msgspec.Struct, frozen=True, kw_only=True):
    """The size of /dev/shm in the container of a server, None where it is hidden."""

    server: str
    bytes: int | None


class HostFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine and its kernel.

    `virtual` and `secure_boot` are None where the host does not tell. `container` names the
    runtime as far as it is known. `boot_time` and `time`, the host's clock at the look, are
    in seconds since the epoch. `enrolled_keys` are the descriptions of the keys that the kernel
    trusts for modules; only root sees them. `product_name` is the machine's own, from DMI.
    `container_shm` is what servers in containers have of it.
    `nvidia_nodes` are the numbers of the device nodes /dev/nvidiaN. `available_bytes` is what
    programs can still get, within a container's own limit. `file_systems` hold the servers' models
    and caches, and `mps_directories` are the pipe directories that are there; where servers or
    their directories could not be found, `servers_problem` says why, and these may lack some.
    """

    system: str = "linux"
    os_id: str = ""
    os_version: str = ""
    os_name: str = ""
    kernel: str = ""
    cmdline: str = ""
    hostname: str = ""
    product_name: str = ""
    virtual: bool | None = None
    virtual_hint: str = ""
    container: str | None = None
    secure_boot: bool | None = None
    secure_boot_hint: str = ""
    enrolled_keys: list[str] | None = None
    ram_bytes: int = 0
    available_bytes: int | None = None
    swap: Swap | None = None
    huge_pages: list[HugePages] | None = None
    numa_nodes: list[NumaNode] | None = None
    shm_bytes: int | None = None
    container_shm: list[ContainerShm] = []
    file_systems: list[FileSystem] | None = None
    mps_directories: list[str] | None = None
    servers_problem: str = ""
    boot_time: int = 0
    time: int = 0
    nvidia_nodes: list[int] | None = None


def parse_os_release(text: str) -> dict[str, str]:
    """Return the assignments of an os-release file, quotes taken off."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key: value.strip().strip("\"'") for key, value in pairs}


def parse_boot_time(stat: str) -> int:
    """Return the boot time of /proc/stat in seconds since the epoch."""
    match = re.search(r"^btime (\d+)", stat, re.MULTILINE)
    return int(match[1]) if match else 0


def parse_keys(proc_keys: str) -> list[str]:
    """Return the descriptions of the asymmetric keys that /proc/keys lists."""
    return re.findall(r"^.*\basymmetri\s+(.+?): X509", proc_keys, re.MULTILINE)


def find_nodes(probe: Probe) -> list[int]:
    """Return the numbers of the GPUs' device nodes."""
    nodes = (re.fullmatch(r"nvidia(\d+)", name) for name in probe.names("/dev"))
    return sorted(int(node[1]) for node in nodes if node)


def find_virtual(probe: Probe) -> tuple[bool | None, str]:
    """Say whether this is a virtual machine, and by what sign."""
    cpuinfo = probe.text("/proc/cpuinfo")
    if "microsoft" in probe.text("/proc/sys/kernel/osrelease").lower():
        return True, "WSL kernel"
    if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE):
        return True, "/proc/cpuinfo has the flag hypervisor"
    if re.search(r"^flags\s*:", cpuinfo, re.MULTILINE):
        return False, "/proc/cpuinfo has no flag hypervisor"
    if match := re.search(r"^platform\s*:\s*(PowerNV|pSeries)", cpuinfo, re.MULTILINE):
        return match[1] == "pSeries", f"/proc/cpuinfo names the platform {match[1]}"
    return None, "/proc/cpuinfo does not tell"


def find_container(probe: Probe) -> str | None:
    """Name the container runtime around this process, or None on a host."""
    for mark, runtime in _CONTAINER_MARKS.items():
        if probe.exists(mark):
            return runtime
    if name := probe.text_or_none("/run/systemd/container"):
        return name.strip()
    try:
        environment = probe.text("/proc/1/environ")
    except CannotLook:  # only root may see it
        return None
    match = re.search(r"(?:^|\0)container=([^\0]+)", environment)
    return match[1] if match else None


def find_secure_boot(probe: Probe, container: str | None) -> tuple[bool | None, str]:
    """Say whether the kernel enforces Secure Boot, and by what sign."""
    if not probe.exists(_EFI):
        if container:
            return None, f"{_EFI} is hidden from this container"
        return False, f"no {_EFI}: the host started without UEFI"
    try:
        state = probe.data(f"{_EFIVARS}/{_SECURE_BOOT}")
    except CannotLook as reason:
        return None, str(reason)
    # Four bytes of attributes, then the value.
    if state[4:5] != b"\x01":
        return False, f"{_SECURE_BOOT.split('-')[0]} is 0"
    shim = f"{_EFIVARS}/{_SHIM_DISABLED}"
    if probe.exists(shim) and probe.data(shim)[4:5] == b"\x01":
        return False, "validation is switched off in shim (MokSBStateRT is 1)"
    return True, f"{_SECURE_BOOT.split('-')[0]} is 1"


def _maybe(look: Callable[[], T]) -> T | None:
    """Return what is found, None where a container or a hardened host hides it."""
    try:
        return look()
    except CannotLook:
        return None


def find_servers(probe: Probe) -> tuple[list[serve.Server], list[FileSystem] | None, str]:
    """Return the servers and their file systems, with the reason for what could not be had."""
    servers: list[serve.Server] = []
    try:
        servers = probe.within(_SERVERS_S, lambda: probe.once(serve.find)).servers
        found, problem = probe.within(_SERVERS_S, lambda: disks.collect(probe, servers))
        return servers, found, problem
    except CannotLook as reason:
        return servers, None, str(reason)
    except Exception as error:  # a fault in the search for servers must not hide the host's facts
        return servers, None, f"the search for servers failed: {type(error).__name__}: {error}"


def find_container_shm(probe: Probe, servers: list[serve.Server]) -> list[ContainerShm]:
    """Return the /dev/shm of each server that runs in a container."""

    def look(server: serve.Server) -> int | None:
        return _maybe(lambda: probe.disk(f"/proc/{server.pids[0]}/root{SHM}").total)

    return [ContainerShm(server=s.name, bytes=look(s)) for s in servers if s.container and s.pids]


def find_mps_directories(probe: Probe, servers: list[serve.Server]) -> list[str]:
    """Return the MPS pipe directories that exist: CUDA's default, and those that servers name."""
    named = ((server.env or {}).get("CUDA_MPS_PIPE_DIRECTORY") for server in servers)
    found = []
    for path in dict.fromkeys((_MPS_DIRECTORY, *named)):
        with contextlib.suppress(CannotLook):  # another user's
            if path and probe.exists(path):
                found.append(path)
    return found


def collect(probe: Probe) -> HostFacts:
    """Read the machine's own description of itself."""
    release = parse_os_release(
        probe.text_or_none("/etc/os-release") or probe.text("/usr/lib/os-release")
    )
    virtual, virtual_hint = find_virtual(probe)
    container = find_container(probe)
    secure_boot, secure_boot_hint = find_secure_boot(probe, container)
    keys = parse_keys(probe.text_or_none("/proc/keys") or "")
    meminfo = memory.parse_meminfo(probe.text("/proc/meminfo"))
    servers, file_systems, servers_problem = find_servers(probe)
    return HostFacts(
        os_id=release.get("ID", ""),
        os_version=release.get("VERSION_ID", ""),
        os_name=release.get("PRETTY_NAME", ""),
        kernel=probe.text("/proc/sys/kernel/osrelease").strip(),
        cmdline=probe.text("/proc/cmdline").strip(),
        hostname=probe.text("/proc/sys/kernel/hostname").strip(),
        product_name=(probe.text_or_none(_PRODUCT_NAME) or "").strip(),
        virtual=virtual,
        virtual_hint=virtual_hint,
        container=container,
        secure_boot=secure_boot,
        secure_boot_hint=secure_boot_hint,
        enrolled_keys=keys or None,
        ram_bytes=meminfo.get("MemTotal", 0),
        available_bytes=_maybe(lambda: memory.find_available(probe, meminfo, container)),
        swap=_maybe(lambda: memory.find_swap(probe, meminfo)),
        huge_pages=_maybe(lambda: memory.find_huge_pages(probe, meminfo)),
        numa_nodes=_maybe(lambda: memory.find_numa_nodes(probe)),
        shm_bytes=_maybe(lambda: probe.disk(SHM).total),
        container_shm=find_container_shm(probe, servers),
        file_systems=file_systems,
        mps_directories=find_mps_directories(probe, servers),
        servers_problem=servers_problem,
        boot_time=parse_boot_time(probe.text("/proc/stat")),
        time=int(probe.time()),
        nvidia_nodes=find_nodes(probe),
    )
