"""Where servers are found: running processes, unit files, and the installed release."""

from typing import NamedTuple

from volta_doctor.facts import proc, unit_files
from volta_doctor.facts.release import current_release, install_root, read_manifest
from volta_doctor.facts.serve.command_line import Command, in_shell, unwrapped
from volta_doctor.facts.serve.engines import Engine, recognise
from volta_doctor.probe import CannotLook, Probe

_PATIENCE_S = 0.5  # reading a model from disk looks like being stuck, for a moment


class Launch(NamedTuple):
    """How one server is or would be started; `words` are its arguments.

    `manager` is the user whose manager runs the unit, None for the system's. `env` is None where
    it may not be seen, for `env_problem`. `root` stands before every path of a process with a file
    system of its own.
    """

    name: str
    source: str
    command: Command
    engine: Engine
    words: list[str]
    env: dict[str, str] | None
    env_problem: str = ""
    unit: str | None = None
    manager: str | None = None
    container: str | None = None
    pids: tuple[int, ...] = ()
    exe: str | None = None
    directory: str | None = None
    user: str | None = None
    home: str | None = None
    root: str = ""


def from_processes(probe: Probe) -> tuple[list[Launch], int]:
    """Return the servers that run, and how many processes hide their command line."""
    processes = probe.once(proc.table)
    roots: dict[int, list[str]] = {}
    stuck = proc.find_stuck(
        probe, {process.pid for process in processes.values() if process.state == "D"}, _PATIENCE_S
    )
    hidden = len(stuck)  # a command line may block for ever where it is stuck in a memory fault
    for pid in processes.keys() - stuck:
        try:
            argv = proc.argv_of(probe, pid)
        except CannotLook:
            hidden += proc.state_of(probe, pid) is not None
            continue
        if recognise(argv):
            roots[pid] = argv
    tops = [pid for pid in sorted(roots) if not proc.ancestors(processes, pid) & roots.keys()]
    owners = {pid: proc.cgroup_of(probe, pid) for pid in tops}
    known = unit_files.accounts(probe)
    return [_running(probe, pid, roots[pid], owners, known) for pid in tops], hidden


def _running(
    probe: Probe,
    pid: int,
    argv: list[str],
    owners: dict[int, proc.Cgroup],
    known: dict[int, unit_files.Account],
) -> Launch:
    owner = owners[pid]
    name = f"pid {pid}"
    if list(owners.values()).count(owner) == 1:
        name = owner.unit or (f"container {owner.container}" if owner.container else name)
    # The accounts of a container are its own.
    uid = proc.uid_of(probe, pid)
    account = known.get(uid) if uid is not None and not owner.container else None
    env: dict[str, str] | None = None
    problem = ""
    try:
        env = proc.environ_of(probe, pid)
    except CannotLook as reason:
        problem = f"{reason}: run again with sudo"
    found = recognise(argv)
    assert found
    return Launch(
        name=name,
        source=f"/proc/{pid}",
        command=Command(argv),
        engine=found[0],
        words=found[1],
        env=env,
        env_problem=problem,
        unit=owner.unit,
        manager=_user(known, owner.manager),
        container=owner.container,
        pids=tuple(proc.descendants(processes=probe.once(proc.table), root=pid)),
        exe=probe.link(f"/proc/{pid}/exe"),
        directory=probe.link(f"/proc/{pid}/cwd"),
        user=account.name if account else None,
        home=(env or {}).get("HOME") or (account.home if account else None),
        root=f"/proc/{pid}/root" if owner.container else "",
    )


def _user(known: dict[int, unit_files.Account], uid: int | None) -> str | None:
    if uid is None:
        return None
    return known[uid].name if uid in known else str(uid)


def from_units(probe: Probe) -> list[Launch]:
    """Return the servers that unit files start, whether they run or not."""
    return [launch for unit in unit_files.read_units(probe) for launch in _of_unit(probe, unit)]


def _of_unit(probe: Probe, unit: unit_files.UnitFile) -> list[Launch]:
    env: dict[str, str] | None
    problem = ""
    try:
        env = unit_files.environment(probe, unit)
    except CannotLook as reason:
        env, problem = None, f"{reason}: run again with sudo"
    for argv in unit_files.exec_start(unit, env or {}):
        for command in unwrapped(argv) if not _script(argv) else in_shell(_text(probe, argv)):
            if found := recognise(command.words):
                user = unit.last("User") or (unit.account.name if unit.account else "root")
                if unit.last("DynamicUser") in ("yes", "true", "on", "1") and user == "root":
                    user = unit.name.removesuffix(".service")
                homes = {a.name: a.home for a in unit_files.accounts(probe).values()}
                launch = Launch(
                    name=unit.name,
                    source=unit.path,
                    command=command,
                    engine=found[0],
                    words=found[1],
                    env=env,
                    env_problem=problem,
                    unit=unit.name,
                    manager=unit.account.name if unit.account else None,
                    directory=unit.last("WorkingDirectory"),
                    user=user,
                    home=(env or {}).get("HOME") or homes.get(user),
                )
                return [launch]
    return []


def _script(argv: list[str]) -> bool:
    return any(word.endswith(".sh") for word in argv[:2])


def _text(probe: Probe, argv: list[str]) -> str:
    path = next(word for word in argv[:2] if word.endswith(".sh"))
    try:
        return probe.text_or_none(path) or ""
    except CannotLook:
        return ""


def from_release(probe: Probe) -> Launch | None:
    """Return the installed release's server, None where no release is installed."""
    try:
        directory = current_release(probe)
        manifest = read_manifest(probe, directory)
    except CannotLook:
        return None
    env: dict[str, str] | None
    problem = ""
    try:
        env = unit_files.environment_file(probe.text(f"{directory}/serve.env"))
    except CannotLook as reason:
        env, problem = None, str(reason)
    command = Command([f"{install_root(probe)}/current/venv/bin/volta-serve", "serve"])
    found = recognise(command.words)
    assert found
    return Launch(
        name=manifest.unit,
        source=f"{directory}/release.json",
        command=command,
        engine=found[0],
        words=found[1],
        env=env,
        env_problem=problem,
        unit=manifest.unit if manifest.manager.startswith("systemd") else None,
    )
