"""Do the units of servers leave them room, and do they start in order?"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import on_cpu
from volta_doctor.checks.steps import unit_drop_in
from volta_doctor.facts.checkpoint import CheckpointFacts
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.serve import Server
from volta_doctor.facts.units import PERSISTENCED, Limit, UnitFacts, UnitsFacts, owner_of
from volta_doctor.findings import Evidence, Finding, Step
from volta_doctor.words import several

Judge = Callable[[Server, UnitFacts], Finding]

_OPEN_FILES = 65536
# They raise their own soft limit to 65535 as far as the hard one lets them (vllm/utils,
# sglang/srt/utils: set_ulimit).
_RAISE_THEIR_LIMIT = ("vllm", "1cat-vllm", "sglang")
# systemd takes it from login.defs when it is built, not when it runs (systemd #2324).
_LAST_SYSTEM_UID = 999
_LOGIND_DROP_IN = "/etc/systemd/logind.conf.d/volta-unit-start.conf"


def each_unit(facts: Facts, row: Row, judge: Judge) -> Finding | list[Finding]:
    """Judge the unit of every server; without one, or without an answer, say why it is not."""
    serve, units = facts.serve.need(), facts.units.need()
    if serve.servers:
        return [_judge_one(row, server, units, judge) for server in serve.servers]
    if serve.problem:
        return row.unknown(f"No server was found, but one may have been missed: {serve.problem}.")
    return row.skip("There is no server of language models on this host.")


def _judge_one(row: Row, server: Server, units: UnitsFacts, judge: Judge) -> Finding:
    if server.unit is None:
        return row.skip(f"No unit of systemd starts it ({server.source}).", subject=server.name)
    unit = units.find(server.unit, owner_of(server))
    if units.problem or unit is None:
        reason = units.problem or f"nothing is recorded of {server.unit}"
        return row.unknown(f"Its unit cannot be judged: {reason}.", subject=server.name)
    if unit.problem or unit.load_state != "loaded":
        reason = unit.problem or f"systemd's load state of it is {unit.load_state}"
        return row.unknown(f"Its unit cannot be judged: {reason}.", subject=server.name)
    try:
        return judge(server, unit)
    except Missing as reason:
        return row.unknown(str(reason), subject=server.name)


def on_gpus(facts: Facts, server: Server) -> bool:
    """Say whether a server uses NVIDIA cards, as far as its flags and the host tell."""
    return bool(facts.pci.need().gpus) and not on_cpu(server)


def seen(unit: UnitFacts, text: str) -> Evidence:
    """Show a setting as systemd prints it."""
    return Evidence(f"systemctl show {unit.name}", text)


def drop_in(row: Row, unit: UnitFacts, lines: Mapping[str, Sequence[str]]) -> list[Step]:
    """Return the steps that add lines, by section, to a unit of the system and restart it."""
    if unit.user is not None or not lines:
        return []  # only its user can speak to that manager
    text = "\n".join(f"[{section}]\n" + "\n".join(added) for section, added in lines.items())
    return unit_drop_in(row.id, unit.name, text)


def gib(size: float) -> str:
    """Write a number of bytes for a person."""
    return f"{size / 2**30:.2f} GiB"


def _is_root(unit: UnitFacts) -> bool:
    return unit.run_as in ("", "root", "0") and not unit.dynamic_user and unit.user is None


def _at_least(limit: Limit) -> Limit:
    return max(limit, _OPEN_FILES) if isinstance(limit, int) else limit


def _memory_finding(
    row: Row, server: Server, unit: UnitFacts, model: CheckpointFacts | None
) -> Finding | None:
    """Judge MemoryMax; None where it leaves room."""
    limit = unit.memory_max
    if limit is None:
        return row.unknown("systemd does not tell its MemoryMax.", subject=server.name)
    if limit == "infinity":
        return None
    shown = seen(unit, f"MemoryMax={limit}")
    if model is None or model.weight_bytes is None:
        reason = model.problem if model else "it names no model"
        text = f"MemoryMax is {gib(limit)}, and the size of the weights is not known: {reason}."
        return row.unknown(text, shown, subject=server.name)
    if limit < model.weight_bytes:
        text = f"MemoryMax is {gib(limit)}, less than the weights' {gib(model.weight_bytes)}."
        weights = Evidence(model.path or "", f"{model.weight_bytes} bytes of weights")
        return row.fail(text, shown, weights, subject=server.name)
    return None


@check("unit-limits")
def unit_limits(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """A limit that is too low shows as a server that dies while it loads, or under load."""
    models = facts.checkpoint.need()

    def judge(server: Server, unit: UnitFacts) -> Finding:
        if found := _memory_finding(row, server, unit, models.of(server.name)):
            return found
        soft, hard, locked = unit.limit_nofile_soft, unit.limit_nofile, unit.limit_memlock
        if soft is None or hard is None or locked is None:
            return row.unknown("systemd does not tell all of its limits.", subject=server.name)
        raises = server.engine in _RAISE_THEIR_LIMIT
        files, name = (hard, "LimitNOFILE") if raises else (soft, "LimitNOFILESoft")
        evidence = [seen(unit, f"{name}={files}"), seen(unit, f"LimitMEMLOCK={locked}")]
        low = []
        if files != "infinity" and files < _OPEN_FILES:
            kind = "hard" if raises else "soft"
            low.append(f"it may open {files} files ({kind} limit), fewer than {_OPEN_FILES}")
        # CAP_IPC_LOCK exempts root (mlock(2)); without a card nothing is locked.
        if locked != "infinity" and on_gpus(facts, server) and not _is_root(unit):
            low.append(
                f"it may lock {locked / 2**20:g} MiB of memory, and CUDA and NCCL lock what they"
                " copy"
            )
        if low:
            more = ":".join(str(_at_least(limit)) for limit in (soft, hard))
            lines = ["LimitMEMLOCK=infinity", f"LimitNOFILE={more}"]
            steps = drop_in(row, unit, {"Service": lines})
            text = f"Its limits are low: {'; '.join(low)}."
            return row.warn(text, *evidence, subject=server.name, steps=steps)
        text = f"Open files {files}, locked memory {locked}, MemoryMax {unit.memory_max}."
        return row.ok(text, *evidence, subject=server.name)

    return each_unit(facts, row, judge)


def start_limit_hit(unit: UnitFacts) -> bool:
    """Say whether systemd has given up starting a unit.

    The result keeps the cause of the last failed run where a restart hit the limit (seen with
    systemd 252); then the number of restarts tells.
    """
    if unit.result == "start-limit-hit":
        return True
    burst = unit.start_limit_burst or 0
    prevented = str(unit.exit_status) in unit.restart_prevented_by
    return unit.active_state == "failed" and 0 < burst <= (unit.restarts or 0) and not prevented


@check("unit-start")
def unit_start(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """What starts before the driver is ready, or loses its shared memory, fails now and then."""
    units = facts.units.need()

    def judge(server: Server, unit: UnitFacts) -> Finding:
        if unit.result is None or unit.active_state is None:
            return row.unknown("systemd does not tell its state.", subject=server.name)
        state = f"ActiveState={unit.active_state} Result={unit.result} NRestarts={unit.restarts}"
        if start_limit_hit(unit):
            status = f", status {unit.exit_status}" if unit.exit_status else ""
            text = (
                f"systemd has given up on it after {several(unit.restarts or 0, 'restart')}"
                f" (StartLimitBurst {unit.start_limit_burst}): last result {unit.result}{status}."
            )
            return row.fail(text, seen(unit, state), subject=server.name)
        evidence, problems, steps = [seen(unit, state)], [], []
        daemon = units.find(PERSISTENCED)
        if on_gpus(facts, server) and unit.user is None:
            if daemon is None or daemon.problem:
                return row.unknown(f"Nothing is known of {PERSISTENCED}.", subject=server.name)
            if daemon.load_state == "loaded" and PERSISTENCED not in unit.after:
                problems.append(f"it may start before {PERSISTENCED} has woken the cards")
                evidence.append(seen(unit, f"After={' '.join(unit.after)}"))
                steps = drop_in(row, unit, {"Unit": [f"After={PERSISTENCED}"]})
        loses = loses_ipc(units, unit)
        if loses is None:
            text = f"Whether logind removes the shared memory of {unit.run_as} cannot be told."
            return row.unknown(text, *evidence, subject=server.name)
        if loses:
            problems.append(
                f"logind removes its shared memory and semaphores when {unit.run_as} (uid"
                f" {unit.uid}, no system user) logs out"
            )
            evidence.append(Evidence(units.remove_ipc_source, "RemoveIPC=yes"))
            steps += keep_ipc()
        if problems:
            text = f"Its start is not safe: {'; '.join(problems)}."
            return row.warn(text, *evidence, subject=server.name, steps=steps)
        return row.ok(
            f"{unit.active_state} ({unit.sub_state}), in order.", *evidence, subject=server.name
        )

    return each_unit(facts, row, judge)


def loses_ipc(units: UnitsFacts, unit: UnitFacts) -> bool | None:
    """Say whether a log-out takes a unit's shared memory away; None where that is not known.

    logind spares root and system users (logind.conf(5)), and a user whose manager lingers never
    logs out. A dynamic user cannot log in; a user's own unit ends with the manager itself.
    """
    if _is_root(unit) or unit.dynamic_user or unit.user is not None or units.remove_ipc is False:
        return False
    if units.remove_ipc is None or unit.uid is None or unit.lingers is None:
        return None
    return unit.uid > _LAST_SYSTEM_UID and not unit.lingers


def keep_ipc() -> list[Step]:
    """Return the steps that make logind leave shared memory alone."""
    reread = ["systemctl", "kill", "-s", "HUP", "systemd-logind.service"]
    return [
        Step(write=_LOGIND_DROP_IN, content="[Login]\nRemoveIPC=no\n"),
        Step(run=reread, undo=reread),
    ]
