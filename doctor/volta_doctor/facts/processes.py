"""The `processes` section: who has a GPU open, and who of them is stuck in the kernel."""

import re

import msgspec

from volta_doctor.probe import CannotLook, Probe

STUCK_S = 10.0
_SAMPLES = 40  # in that time


class GpuUser(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process with /dev/nvidia* open, or one in D state whose files may not be seen.

    `stuck` means D state in every sample of ten seconds.
    """

    pid: int
    name: str
    state: str
    devices: list[str] | None = None
    stuck: bool = False


class ProcessesFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The pid limit and the processes of interest.

    `hidden` counts processes whose open files this user may not see.
    """

    pid_max: int
    gpu_users: list[GpuUser]
    hidden: int


def parse_stat(text: str) -> tuple[str, str]:
    """Return name and state of /proc/PID/stat; the name may hold spaces and parentheses."""
    match = re.match(r"\d+ \((.*)\) (\S)", text, re.DOTALL)
    return (match[1], match[2]) if match else ("", "")


def open_devices(probe: Probe, pid: str) -> list[str] | None:
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
    if not any(name.startswith("nvidia") for name in probe.names("/dev")):
        return ProcessesFacts(pid_max=pid_max, gpu_users=[], hidden=0)
    users: list[GpuUser] = []
    hidden = 0
    for pid in filter(str.isdigit, probe.names("/proc")):
        try:
            name, state = parse_stat(probe.text(f"/proc/{pid}/stat"))
        except CannotLook:
            continue  # it has just ended
        devices = open_devices(probe, pid)
        hidden += devices is None
        if devices or (devices is None and state == "D"):
            users.append(GpuUser(pid=int(pid), name=name, state=state, devices=devices))
    stuck = find_stuck(probe, {user.pid for user in users if user.state == "D"})
    users = [msgspec.structs.replace(user, stuck=user.pid in stuck) for user in users]
    return ProcessesFacts(pid_max=pid_max, gpu_users=users, hidden=hidden)


def find_stuck(probe: Probe, suspects: set[int]) -> set[int]:
    """Return the processes that stay in D state.

    Most are in it for a moment (nvidia-smi, which the doctor runs meanwhile, is one of them): the
    wait ends with the last that has left it.
    """
    for _ in range(_SAMPLES):
        if not suspects:
            break
        probe.sleep(STUCK_S / _SAMPLES)
        suspects = {pid for pid in suspects if state_of(probe, pid) == "D"}
    return suspects


def state_of(probe: Probe, pid: int) -> str | None:
    """Return a process's state, None when it has ended."""
    try:
        return parse_stat(probe.text(f"/proc/{pid}/stat"))[1]
    except CannotLook:
        return None
