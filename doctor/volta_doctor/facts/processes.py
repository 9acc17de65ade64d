"""The `processes` section: who has a GPU open, who is stuck in the kernel, which tools run."""

import msgspec
from msgspec import structs

from volta_doctor.facts import proc
from volta_doctor.probe import CannotLook, Probe

STUCK_S = 10.0

# Programs that checks ask for by name.
DISPLAY_SERVERS = frozenset(
    {"Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "weston", "sway", "mutter"}
)
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cudafe++", "ninja", "cc1plus"})
DAEMONS = frozenset({"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-persistenced"})
TOOLS = DISPLAY_SERVERS | COMPILERS | DAEMONS
_KERNEL_NAME = 15  # bytes that the kernel keeps of a name


class Process(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process, and the systemd service or the container (beginning of its id) that it is in.

    A long `name` is whole where this user may see it, else its first 15 bytes.
    """

    pid: int
    name: str
    state: str
    ppid: int = 0
    uid: int | None = None
    unit: str | None = None
    container: str | None = None


class GpuUser(Process, frozen=True, kw_only=True, omit_defaults=True):
    """A process with /dev/nvidia* open, or one in D state whose files may not be seen.

    `stuck` means D state in every sample of ten seconds.
    """

    devices: list[str] | None = None
    stuck: bool = False


class ProcessesFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pid limit and the processes of interest.

    `tools` are display servers, compilers and NVIDIA's daemons. `hidden` counts processes whose
    open files this user may not see, and `hidden_pids` lists them.
    """

    pid_max: int
    gpu_users: list[GpuUser]
    hidden: int
    hidden_pids: list[int] = []
    tools: list[Process] = []


def open_devices(probe: Probe, pid: int) -> list[str] | None:
    """Return the NVIDIA devices that a process has open, None where that is hidden."""
    try:
        fds = probe.names(f"/proc/{pid}/fd")
    except CannotLook:
        return None
    targets = {probe.link(f"/proc/{pid}/fd/{fd}") or "" for fd in fds}
    return sorted(target for target in targets if target.startswith("/dev/nvidia"))


def collect(probe: Probe) -> ProcessesFacts:
    """Walk /proc. Never reads cmdline, which blocks on a process stuck in a memory fault."""
    pid_max = int(probe.text("/proc/sys/kernel/pid_max"))
    processes = probe.once(proc.table)
    users: dict[int, list[str] | None] = {}
    hidden: list[int] = []
    if any(name.startswith("nvidia") for name in probe.names("/dev")):
        for pid, process in processes.items():
            devices = open_devices(probe, pid)
            hidden += [pid] if devices is None else []
            if devices or (devices is None and process.state == "D"):
                users[pid] = devices
    stuck = proc.find_stuck(probe, {pid for pid in users if processes[pid].state == "D"}, STUCK_S)
    return ProcessesFacts(
        pid_max=pid_max,
        gpu_users=[
            GpuUser(
                **structs.asdict(_described(probe, processes[pid])),
                devices=devices,
                stuck=pid in stuck,
            )
            for pid, devices in users.items()
        ],
        hidden=len(hidden),
        hidden_pids=hidden,
        tools=[
            _described(probe, process)
            for process in processes.values()
            if _full_names(process.name)
        ],
    )


def _described(probe: Probe, process: proc.Process) -> Process:
    owner = proc.cgroup_of(probe, process.pid)
    return Process(
        pid=process.pid,
        name=_full_name(probe, process),
        state=process.state,
        ppid=process.ppid,
        uid=proc.uid_of(probe, process.pid),
        unit=owner.unit,
        container=owner.container,
    )


def _full_names(name: str) -> list[str]:
    return [tool for tool in TOOLS if tool[:_KERNEL_NAME] == name]


def _full_name(probe: Probe, process: proc.Process) -> str:
    """Return a tool's whole name; both of MPS's programs begin with the same 15 bytes."""
    names = _full_names(process.name)
    exe = (probe.link(f"/proc/{process.pid}/exe") or "").rsplit("/", 1)[-1]
    return exe if exe in names else names[0] if len(names) == 1 else process.name
