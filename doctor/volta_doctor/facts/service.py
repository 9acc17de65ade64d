"""The `service` section: the unit as its manager sees it, and what its HTTP port answers."""

import json
import re
from typing import Literal

import msgspec

from volta_doctor.facts.release import Manifest, current_release, install_root, read_manifest
from volta_doctor.network import Answer
from volta_doctor.probe import CannotLook, NobodyThere, Probe

HTTP_LIMIT_S = 5.0
_COMMAND_S = 3.0
_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,MainPID,InactiveExitTimestampMonotonic,TimeoutStartUSec"
)

Phase = Literal["active", "starting", "inactive"]


class UnitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The service to its manager.

    `phase` is None where the manager could not be asked; `state` is its own words, or the reason.
    `uptime_s` counts from the beginning of the start. `start_timeout_s` is TimeoutStartSec, None
    where there is no such setting or it is infinite.
    """

    state: str
    phase: Phase | None = None
    main_pid: int | None = None
    uptime_s: float | None = None
    start_timeout_s: float | None = None


class HttpFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GET: its status, or in its place the error, and the seconds that it took."""

    url: str
    seconds: float
    status: int | None = None
    error: str | None = None


class ServiceFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The release's service. `models` are the ids that /v1/models lists, None without an answer."""

    manager: str
    unit: str
    model: str
    unit_state: UnitState
    health: HttpFacts
    models_answer: HttpFacts
    models: list[str] | None = None


_UNITS_S = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def parse_timespan(text: str) -> float | None:
    """Return the seconds of systemd's `1min 30s`, None for `infinity`."""
    parts = re.findall(r"(\d+)(us|ms|min|h|s)\b", text)
    return sum(int(number) * _UNITS_S[unit] for number, unit in parts) if parts else None


def parse_show(text: str, now: float) -> UnitState:
    """Return the state in the output of `systemctl show`; `now` is in seconds since boot."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active, sub = values.get("ActiveState", ""), values.get("SubState", "")
    if values.get("LoadState") == "not-found":
        return UnitState(state="the unit does not exist", phase="inactive")
    phase: Phase = "inactive"
    if active in ("active", "reloading"):
        phase = "active"
    elif active == "activating" and sub != "auto-restart":
        phase = "starting"
    started = int(values.get("InactiveExitTimestampMonotonic") or 0) / 1e6
    details = [sub, values.get("Result", "success"), values.get("LoadState", "loaded")]
    said = ", ".join(d for d in details if d not in ("success", "loaded"))
    return UnitState(
        state=f"{active} ({said})",
        phase=phase,
        main_pid=int(values.get("MainPID") or 0) or None,
        uptime_s=round(now - started, 1) if started and phase != "inactive" else None,
        start_timeout_s=parse_timespan(values.get("TimeoutStartUSec", "")),
    )


def parse_process_info(info: dict[str, object]) -> UnitState:
    """Return the state in supervisord's getProcessInfo."""
    name = str(info.get("statename", ""))
    phases: dict[str, Phase] = {"RUNNING": "active", "STARTING": "starting"}
    phase = phases.get(name, "inactive")
    said = str(info.get("spawnerr") or "")
    uptime = float(str(info.get("now", 0))) - float(str(info.get("start", 0)))
    return UnitState(
        state=f"{name} ({said})" if said else name,
        phase=phase,
        main_pid=int(str(info.get("pid") or 0)) or None,
        uptime_s=uptime if phase != "inactive" else None,
    )


def parse_models(body: str) -> list[str] | None:
    """Return the ids in an answer of /v1/models, None where it is not such an answer."""
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return None


def ask_manager(probe: Probe, manifest: Manifest, root: str) -> UnitState:
    """Ask the service manager that the release names. Raises CannotLook where it cannot."""
    if manifest.manager == "supervisor":
        socket = f"{root}/service/supervisord.sock"
        try:
            return parse_process_info(probe.rpc(socket, "supervisor.getProcessInfo", manifest.unit))
        except NobodyThere as reason:
            return UnitState(state=f"supervisord is not running ({reason})", phase="inactive")
    scope = {"systemd": "--system", "systemd-user": "--user"}.get(manifest.manager)
    if scope is None:
        raise CannotLook(f"release.json names an unknown service manager: {manifest.manager}")
    done = probe.run("systemctl", scope, "show", "-p", _PROPERTIES, manifest.unit, limit=_COMMAND_S)
    if done.exit_code != 0:
        raise CannotLook(f"systemctl {scope} show: {done.complaint}")
    return parse_show(done.stdout, probe.monotonic())


def http_facts(url: str, answer: Answer) -> HttpFacts:
    """Keep of an answer what the checks judge."""
    return HttpFacts(
        url=url, seconds=round(answer.seconds, 3), status=answer.status, error=answer.error
    )


def collect(probe: Probe) -> ServiceFacts:
    """Ask the manager and the port; neither answer depends on the other."""
    manifest = read_manifest(probe, current_release(probe))
    try:
        state = ask_manager(probe, manifest, install_root(probe))
    except CannotLook as reason:
        state = UnitState(state=str(reason))
    health_url, models_url = f"{manifest.url}/health", f"{manifest.url}/v1/models"
    health = probe.get(health_url, HTTP_LIMIT_S)
    models = (
        probe.get(models_url, HTTP_LIMIT_S)
        if health.status == 200
        else Answer(None, "", 0.0, "not asked: /health did not answer 200")
    )
    return ServiceFacts(
        manager=manifest.manager,
        unit=manifest.unit,
        model=manifest.model,
        unit_state=state,
        health=http_facts(health_url, health),
        models_answer=http_facts(models_url, models),
        models=parse_models(models.body) if models.status == 200 else None,
    )
