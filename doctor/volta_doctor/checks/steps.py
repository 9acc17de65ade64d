"""Steps that several remedies share."""

from volta_doctor.findings import Step


def enable(unit: str) -> Step:
    """Return the step that starts a unit now and at every boot."""
    return Step(run=_switch("enable", unit), undo=_switch("disable", unit))


def disable(unit: str) -> Step:
    """Return the step that stops a unit now and for every boot."""
    return Step(run=_switch("disable", unit), undo=_switch("enable", unit))


def _switch(verb: str, unit: str) -> list[str]:
    return ["systemctl", verb, "--now", unit]


def unit_drop_in(check_id: str, unit: str, text: str) -> list[Step]:
    """Return the steps that add lines to a unit of the system and restart it where it runs.

    Each check has a drop-in of its own, so that none undoes another's; by its name it comes after
    the override.conf of `systemctl edit`.
    """
    reload, restart = ["systemctl", "daemon-reload"], ["systemctl", "try-restart", unit]
    return [
        Step(write=f"/etc/systemd/system/{unit}.d/volta-{check_id}.conf", content=f"{text}\n"),
        Step(run=reload, undo=reload),
        Step(run=restart, undo=restart),
    ]
