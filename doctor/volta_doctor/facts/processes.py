"""The `processes` section: who has a GPU open, and who of them is stuck in the kernel."""

import re

import msgspec

from volta_doctor.probe import CannotLook, Probe

SAMPLE_GAP_S = 10.0


class GpuUser(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process with /dev/nvidia* open, or one in D state whose files may not be seen.

    `stuck` means D state in two samples ten seconds apart.
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
    if any(user.state == "D" for user in users):
        probe.sleep(SAMPLE_GAP_S)
        users = [second_look(probe, user) for user in users]
    return ProcessesFacts(pid_max=pid_max, gpu_users=users, hidden=hidden)


def second_look(probe: Probe, user: GpuUser) -> GpuUser:
    """Mark a process that is still in D state."""
    try:
        _, state = parse_stat(probe.text(f"/proc/{user.pid}/stat"))
    except CannotLook:
        return user
    return msgspec.structs.replace(user, stuck=user.state == "D" and state == "D")
