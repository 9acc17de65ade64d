"""The processes of the host, as /proc lists them; collectors share one look at them."""

import re
from typing import NamedTuple

from volta_doctor.probe import CannotLook, Probe

_SAMPLES = 40
# A whole system in a container: LXC (Proxmox, Incus) and systemd-nspawn, registered or as a unit.
_MACHINE = re.compile(
    r"/lxc(?:\.payload)?[./]([^/]+)"
    r"|/machine\.slice/(?:systemd-nspawn@([^/]+)\.service|machine-([^/]+)\.scope)/payload"
)


class Process(NamedTuple):
    """One process: `name` is the kernel's (15 bytes at most), `state` its letter (D: stuck)."""

    pid: int
    name: str
    state: str
    ppid: int


# Without pam_systemd what these start for a person, or at a time, stays in their own cgroup.
_OF_SESSIONS = re.compile(r"(?:sshd?|crond?|atd|(?:console-|serial-)?getty)(?:@.*)?\.service")


class Cgroup(NamedTuple):
    """Where a process belongs: the systemd service, or the container by its id or name.

    `manager` is the id of the user whose manager runs the service, None for the system's.
    """

    unit: str | None = None
    container: str | None = None
    manager: int | None = None


def argv_of(probe: Probe, pid: int) -> list[str]:
    """Return a process's command line. Raises CannotLook."""
    return probe.text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")


def environ_of(probe: Probe, pid: int) -> dict[str, str]:
    """Return the environment that a process was started with. Raises CannotLook."""
    parts = probe.text(f"/proc/{pid}/environ").split("\0")
    return dict(part.split("=", 1) for part in parts if "=" in part)


def parse_stat(text: str) -> Process | None:
    """Parse the beginning of /proc/PID/stat; the name may hold spaces and parentheses."""
    match = re.match(r"(\d+) \((.*)\) (\S) (\d+)", text, re.DOTALL)
    return Process(int(match[1]), match[2], match[3], int(match[4])) if match else None


def parse_cgroup(text: str) -> Cgroup:
    """Parse /proc/PID/cgroup: the line of cgroup v2, else that of v1's systemd hierarchy."""
    paths = dict(re.findall(r"^\d+:(|name=systemd):(.*)$", text, re.MULTILINE))
    path = paths.get("", "/")
    if path == "/":
        path = paths.get("name=systemd", "/")
    if container := re.search(r"[0-9a-f]{64}", path):
        return Cgroup(container=container[0][:12])
    if machine := _MACHINE.match(path):
        return Cgroup(container=next(filter(None, machine.groups())))
    # A session's scope lies below user@1000.service, which is not the service of what runs there.
    owners = re.findall(r"[^/]+\.(?:service|scope)(?=/|$)", path)
    unit = owners[-1] if owners and owners[-1].endswith(".service") else None
    if unit and _OF_SESSIONS.fullmatch(unit):
        unit = None
    user = re.search(r"/user@(\d+)\.service/", path)
    return Cgroup(unit=unit, manager=int(user[1]) if user and unit else None)


def state_of(probe: Probe, pid: int) -> str | None:
    """Return a process's state now, None when it has ended."""
    try:
        process = parse_stat(probe.text(f"/proc/{pid}/stat"))
    except CannotLook:
        return None
    return process.state if process else None


def cgroup_of(probe: Probe, pid: int) -> Cgroup:
    """Return where a process belongs; nothing is known of one that has ended."""
    try:
        return parse_cgroup(probe.text(f"/proc/{pid}/cgroup"))
    except CannotLook:
        return Cgroup()


def uid_of(probe: Probe, pid: int) -> int | None:
    """Return the user id of a process, None when it has ended."""
    try:
        match = re.search(r"^Uid:\s+(\d+)", probe.text(f"/proc/{pid}/status"), re.MULTILINE)
    except CannotLook:
        return None
    return int(match[1]) if match else None


def table(probe: Probe) -> dict[int, Process]:
    """Return the processes by pid; ask through `probe.once(table)`."""
    found: dict[int, Process] = {}
    for pid in filter(str.isdigit, probe.names("/proc")):
        try:
            process = parse_stat(probe.text(f"/proc/{pid}/stat"))
        except CannotLook:
            continue  # it has just ended
        if process:
            found[process.pid] = process
    return found


def find_stuck(probe: Probe, suspects: set[int], seconds: float) -> set[int]:
    """Return the processes that stay in D state; most are in it for a moment.

    The wait ends with the last that has left it.
    """
    for _ in range(_SAMPLES):
        if not suspects:
            break
        probe.sleep(seconds / _SAMPLES)
        suspects = {pid for pid in suspects if state_of(probe, pid) == "D"}
    return suspects


def ancestors(processes: dict[int, Process], pid: int) -> set[int]:
    """Return the processes that a process comes from."""
    found: set[int] = set()
    while (process := processes.get(pid)) and process.ppid not in found:
        pid = process.ppid
        found.add(pid)
    return found


def descendants(processes: dict[int, Process], root: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.append(pid)
            todo.extend(children.get(pid, []))
    return sorted(found)
