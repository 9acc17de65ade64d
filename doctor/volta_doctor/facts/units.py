"""The `units` section: settings and state of the units that serve and that GPUs need.

They are systemd's own answer, so defaults, drop-ins and slices count. A setting that this systemd
does not know has the value that stands for no restriction.
"""

import re
from typing import Literal, TypeAlias

import msgspec

from volta_doctor.facts import logind, serve
from volta_doctor.facts.cpu_list import from_systemd
from volta_doctor.facts.serve import Server
from volta_doctor.facts.service import parse_timespan
from volta_doctor.facts.unit_files import SYSTEM, accounts
from volta_doctor.probe import CannotLook, Probe

BOOTED = "/run/systemd/system"  # sd_booted(3): it exists where systemd is the init system
PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
MODULES_LOAD = "systemd-modules-load.service"
UVM_SERVICE = "modprobe@nvidia_uvm.service"

_COMMAND_S = 3.0
_UNLIMITED = ("infinity", str(2**64 - 1))  # the number is what old ones print
# In order of precedence, as for every directory of drop-ins (systemd.syntax(7)).
_MODULES_LOAD_D = [
    f"{base}/modules-load.d" for base in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
]

Limit: TypeAlias = int | Literal["infinity"] | None


class UnitFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One unit; None is what was not recorded, and all of it where a `problem` says why.

    `user` is who owns the manager of a user unit, None for the system's; `run_as` is User=, `uid`
    its id and `lingers` whether that user's manager outlives the last session. Limits are in bytes,
    or files for `limit_nofile` (hard) and `limit_nofile_soft`. `bind_paths` (read-only ones too)
    are source:destination:options. `address_families` and `system_calls` are in systemd's words: ~
    before a list of what is denied (`~` alone: nothing is), else what is allowed, groups expanded.
    CPUs are kernel lists (0-19,40), empty without a restriction; `allowed_cpus` are those of the
    control group where it tells.
    """

    name: str
    user: str | None = None
    problem: str = ""
    load_state: str | None = None
    active_state: str | None = None
    sub_state: str | None = None
    result: str | None = None
    restarts: int | None = None
    start_limit_burst: int | None = None
    restart_prevented_by: list[str] = []
    exit_status: int | None = None
    start_timeout_s: float | None = None
    unit_file_state: str | None = None
    fragment: str | None = None
    drop_ins: list[str] = []
    after: list[str] = []
    pulls_in: list[str] = []
    run_as: str | None = None
    uid: int | None = None
    dynamic_user: bool | None = None
    lingers: bool | None = None
    private_devices: bool | None = None
    bind_paths: list[str] = []
    device_allow: list[str] = []
    device_policy: str | None = None
    proc_subset: str | None = None
    memory_deny_write_execute: bool | None = None
    address_families: str | None = None
    system_calls: str | None = None
    limit_memlock: Limit = None
    limit_nofile: Limit = None
    limit_nofile_soft: Limit = None
    memory_max: Limit = None
    cpu_affinity: str | None = None
    allowed_cpus: str | None = None


class UvmLoader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unit that loads nvidia-uvm, and the file that says so."""

    unit: str
    source: str
    line: int | None = None


class UnitsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The units of servers, nvidia-persistenced, nvidia-fabricmanager and what loads nvidia-uvm.

    Without systemd there are no units, and `problem` says so. `remove_ipc` is logind's RemoveIPC=
    and `remove_ipc_source` where it stands.
    """

    problem: str = ""
    systemd: str | None = None
    units: list[UnitFacts] = []
    uvm_loaders: list[UvmLoader] = []
    remove_ipc: bool | None = None
    remove_ipc_source: str = ""

    def find(self, name: str, user: str | None = None) -> UnitFacts | None:
        """Return a unit of the system's manager, or of that user's."""
        return next((u for u in self.units if u.name == name and u.user == user), None)


_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,NRestarts,StartLimitBurst,RestartPreventExitStatus,"
    "ExecMainStatus,TimeoutStartUSec,UnitFileState,FragmentPath,DropInPaths,After,Requires,Wants,"
    "User,DynamicUser,PrivateDevices,BindPaths,BindReadOnlyPaths,DeviceAllow,DevicePolicy,"
    "ProcSubset,MemoryDenyWriteExecute,RestrictAddressFamilies,SystemCallFilter,LimitMEMLOCK,"
    "LimitNOFILE,LimitNOFILESoft,MemoryMax,CPUAffinity,AllowedCPUs,EffectiveCPUs"
)


def owner_of(server: Server) -> str | None:
    """Return whose manager a server's unit belongs to, None for the system's."""
    return server.user if "/systemd/user/" in server.source else None


def parse_blocks(text: str) -> list[dict[str, list[str]]]:
    """Return the properties of each unit that `systemctl show` prints, repeated ones in order."""
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        properties: dict[str, list[str]] = {}
        for line in block.splitlines():
            key, equals, value = line.partition("=")
            if equals:
                properties.setdefault(key, []).append(value)
        blocks.append(properties)
    return blocks


def parse_limit(text: str) -> Limit:
    """Return a limit, None where the text is none."""
    if text in _UNLIMITED:
        return "infinity"
    return int(text) if text.isdigit() else None


def parse_unit(name: str, user: str | None, properties: dict[str, list[str]]) -> UnitFacts:
    """Return the unit that a block describes."""

    def text(key: str, otherwise: str = "") -> str:
        return properties.get(key, [otherwise])[-1]

    def words(*keys: str) -> list[str]:
        return [word for key in keys for word in text(key).split()]

    def number(key: str) -> int | None:
        return int(text(key)) if text(key).isdigit() else None

    return UnitFacts(
        name=name,
        user=user,
        load_state=text("LoadState"),
        active_state=text("ActiveState"),
        sub_state=text("SubState"),
        result=text("Result"),
        restarts=number("NRestarts"),
        start_limit_burst=number("StartLimitBurst"),
        restart_prevented_by=words("RestartPreventExitStatus"),
        exit_status=number("ExecMainStatus"),
        start_timeout_s=parse_timespan(text("TimeoutStartUSec")),
        unit_file_state=text("UnitFileState"),
        fragment=text("FragmentPath") or None,
        drop_ins=words("DropInPaths"),
        after=sorted(words("After")),
        pulls_in=sorted(set(words("Requires", "Wants"))),
        run_as=text("User"),
        dynamic_user=text("DynamicUser") == "yes",
        private_devices=text("PrivateDevices") == "yes",
        bind_paths=words("BindPaths", "BindReadOnlyPaths"),
        device_allow=properties.get("DeviceAllow", []),
        device_policy=text("DevicePolicy", "auto"),
        proc_subset=text("ProcSubset", "all"),  # from 247 on
        memory_deny_write_execute=text("MemoryDenyWriteExecute") == "yes",
        address_families=text("RestrictAddressFamilies", "~"),
        system_calls=text("SystemCallFilter", "~"),
        limit_memlock=parse_limit(text("LimitMEMLOCK")),
        limit_nofile=parse_limit(text("LimitNOFILE")),
        limit_nofile_soft=parse_limit(text("LimitNOFILESoft")),
        memory_max=parse_limit(text("MemoryMax")),
        cpu_affinity=from_systemd(text("CPUAffinity")),
        allowed_cpus=from_systemd(text("EffectiveCPUs") or text("AllowedCPUs")),
    )


def show(probe: Probe, scope: list[str], names: list[str], user: str | None) -> list[UnitFacts]:
    """Ask one manager for its units; where it does not answer each has the reason."""
    argv = ["systemctl", *scope, "show", "-p", _PROPERTIES, *names]
    try:
        done = probe.run(*argv, limit=_COMMAND_S)
        if done.exit_code != 0:
            raise CannotLook(f"{' '.join(argv[: len(scope) + 2])}: {done.complaint}")
        blocks = parse_blocks(done.stdout)
        if len(blocks) != len(names):
            raise CannotLook(f"systemctl show answers for {len(blocks)} of {len(names)} units")
    except CannotLook as reason:
        return [UnitFacts(name=name, user=user, problem=str(reason)) for name in names]
    return [parse_unit(name, user, block) for name, block in zip(names, blocks, strict=True)]


def scope_of(probe: Probe, server: Server) -> list[str]:
    """Return systemctl's options for the manager of a server's unit."""
    if owner_of(server) is None:
        return ["--system"]
    own = server.user == "root" if probe.is_root else server.home == probe.env.get("HOME")
    return ["--user"] if own else ["--user", f"--machine={server.user}@"]  # from 248 on


def find_uvm_loaders(probe: Probe, names: set[str]) -> list[UvmLoader]:
    """Return those of the named units that load nvidia-uvm, and modules-load where it is told to.

    A unit loads it whose file says nvidia-uvm, or runs nvidia-modprobe with -u.
    """
    found = [
        UvmLoader(unit=name, source="/usr/lib/systemd/system/modprobe@.service")
        for name in sorted(names)
        if re.fullmatch(r"modprobe@nvidia(?:[-_]|\\x2d)uvm\.service", name)
    ]
    for file in logind.drop_ins(probe, _MODULES_LOAD_D):
        for number, line in enumerate(probe.text(file).splitlines(), 1):
            if line.strip() in ("nvidia-uvm", "nvidia_uvm"):
                found.append(UvmLoader(unit=MODULES_LOAD, source=file, line=number))
    for name in sorted(names):
        paths = [f"{directory}/{name}" for directory in SYSTEM]
        path = next((path for path in paths if "nvidia" in name and probe.exists(path)), None)
        if path and re.search(
            r"^[^#;]*(?:nvidia[-_]uvm|nvidia-modprobe\b.*\s-\w*u)", probe.text(path), re.MULTILINE
        ):
            found.append(UvmLoader(unit=name, source=path))
    return found


def with_account(probe: Probe, unit: UnitFacts) -> UnitFacts:
    """Add what the host knows of the user that a system unit runs as."""
    if not unit.run_as or unit.user:
        return unit
    known = {account.name: account for account in accounts(probe).values()}
    by_name = known.get(unit.run_as)
    uid = by_name.uid if by_name else int(unit.run_as) if unit.run_as.isdigit() else None
    lingers = probe.exists(f"/var/lib/systemd/linger/{unit.run_as}")
    return msgspec.structs.replace(unit, uid=uid, lingers=lingers)


def collect(probe: Probe) -> UnitsFacts:
    """Ask each manager once."""
    if not probe.exists(BOOTED):
        return UnitsFacts(problem=f"systemd does not run here ({BOOTED} does not exist)")
    try:
        servers = probe.once(serve.find).servers
    except CannotLook:
        servers = []  # the section `serve` says why
    asked: dict[tuple[str | None, tuple[str, ...]], list[str]] = {
        (None, ("--system",)): [PERSISTENCED, FABRIC_MANAGER, UVM_SERVICE]
    }
    for server in servers:
        if server.unit:
            names = asked.setdefault((owner_of(server), tuple(scope_of(probe, server))), [])
            if server.unit not in names:
                names.append(server.unit)
    units = [
        with_account(probe, unit)
        for (user, scope), names in asked.items()
        for unit in show(probe, list(scope), names, user)
    ]
    remove_ipc, source = logind.find_remove_ipc(probe)
    version = probe.run("systemctl", "--version", limit=_COMMAND_S).stdout.split("\n")[0]
    return UnitsFacts(
        systemd=version or None,
        units=units,
        uvm_loaders=find_uvm_loaders(probe, {name for unit in units for name in unit.after}),
        remove_ipc=remove_ipc,
        remove_ipc_source=source,
    )
