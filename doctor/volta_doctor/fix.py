"""The plan of remedies, and taking those steps of it that are safe to take on this host."""

import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from volta_doctor import command
from volta_doctor.catalog import checks
from volta_doctor.facts.model import Facts
from volta_doctor.findings import HOST, Finding, Remedy, Status, Step
from volta_doctor.journal import Entry, Journal, StepFailed

SAFE = ("none", "reconfigure", "restart")
STEP_S = 300.0
_STOPS = {"restart", "try-restart", "stop", "--gpu-reset"}
# Commands that need no more rights than the directories of their paths do.
_OF_FILES = {"mv", "cp", "ln", "mkdir", "touch", "chmod"}


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy and the subjects that it is for."""

    id: str
    status: Status
    message: str
    subjects: list[str]
    remedy: Remedy

    @property
    def for_you(self) -> str:
        """Why a person must do it, empty where `fix --apply` can."""
        if self.remedy.risk not in SAFE:
            return f"it takes a {self.remedy.risk}" if self.remedy.risk == "reboot" else "by hand"
        return "" if self.remedy.steps else "it takes judgement"

    @property
    def stops(self) -> bool:
        """Whether it stops something that runs."""
        return self.remedy.risk == "restart" or any(
            not _STOPS.isdisjoint(step.run) for step in self.remedy.steps
        )

    def depends_on(self, other: "Fix") -> bool:
        """Whether it makes no sense where the other could not be done: it is its consequence."""
        return self.id in checks()[other.id].hides


def plan(findings: Sequence[Finding], info: bool = False) -> list[Fix]:
    """Return the remedies of what fails and warns, in the findings' order.

    Waived findings and those folded under a cause are left out; `info` takes in what is merely
    worth knowing. One remedy for several subjects is one fix.
    """
    levels = (Status.FAIL, Status.WARN, *([Status.INFO] if info else []))
    fixes: dict[tuple[str, bytes], Fix] = {}
    for finding in findings:
        if finding.status not in levels or finding.folded_under or finding.waived:
            continue
        key = (finding.id, msgspec.json.encode(finding.remedy))
        known = fixes.get(key)
        fixes[key] = Fix(
            id=finding.id,
            status=known.status if known else finding.status,
            message=known.message if known else finding.message,
            subjects=[*(known.subjects if known else []), finding.subject],
            remedy=finding.remedy,
        )
    return list(fixes.values())


def servers(facts: Facts) -> list[str]:
    """Name the servers that run on this host."""
    if serve := facts.serve.data:
        return [
            f"{server.name} (pid {', '.join(map(str, server.pids))})"
            for server in serve.servers
            if server.pids
        ]
    service = facts.service.data
    if service and service.unit_state.main_pid:
        return [f"{service.unit} (pid {service.unit_state.main_pid})"]
    return []


def needs_root(step: Step) -> bool:
    """Say whether this user lacks the rights for a step."""
    if os.geteuid() == 0:
        return False
    if step.write:
        return not _writable(Path(step.write))
    if step.run[0] in _OF_FILES:
        return not all(_writable(Path(arg)) for arg in step.run[1:] if arg.startswith("/"))
    return "--user" not in step.run


def shown(step: Step) -> str:
    """Return a step in one line."""
    return f"write {step.write}" if step.write else shlex.join(step.run)


def take(fix: Fix, journal: Journal, tell: Callable[[str], None]) -> None:
    """Take a fix's steps, each written to the journal before and after.

    A step that was taken for an earlier fix is not taken twice. Ctrl-C lets the step at work end;
    then what this fix has begun is taken back, unless it is complete. Raises StepFailed, or
    KeyboardInterrupt in the end.
    """
    mine: list[Entry] = []
    with held_interrupts(tell) as interrupted:
        for step in fix.remedy.steps:
            if journal.has_done(step):
                tell(f"done already: {shown(step)}")
                continue
            tell(f"doing: {shown(step)}")
            entry = journal.begin(fix.id, step)
            mine.append(entry)
            do(step, entry, journal)
            if interrupted() and step is not fix.remedy.steps[-1]:
                journal.undo(mine, run, tell)
        if interrupted():
            raise KeyboardInterrupt


def do(step: Step, entry: Entry, journal: Journal) -> None:
    """Take one step. Raises StepFailed with the step's own words."""
    try:
        if step.write:
            journal.write_file(entry, step.content)
        else:
            run(step.run)
    except (OSError, StepFailed) as error:
        journal.end(entry, "failed")
        raise StepFailed(f"{shown(step)}: {error}") from error
    journal.end(entry, "done")


def run(argv: Sequence[str]) -> None:
    """Run a command to its end, for at most STEP_S seconds. Raises StepFailed."""
    path = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
    try:
        done = command.run(argv, {**os.environ, "LC_ALL": "C", "PATH": path}, STEP_S)
    except OSError as error:
        raise StepFailed(f"{argv[0]}: {error.strerror}") from error
    if done.exit_code != 0:
        raise StepFailed(done.complaint)


@contextlib.contextmanager
def held_interrupts(tell: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back; the function given says whether there was one."""
    asked: list[int] = []

    def note(number: int, _frame: object) -> None:
        if not asked:
            tell(f"stopping when the step at work has ended, within {STEP_S:.0f} s")
        asked.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def _writable(path: Path) -> bool:
    there = next(parent for parent in path.parents if parent.exists())
    return os.access(there, os.W_OK)


def text(fixes: Sequence[Fix], facts: Facts) -> str:
    """Return the plan as a person reads it: what, why, at what risk, how, and how back."""
    lines: list[str] = []
    for number, fix in enumerate(fixes, 1):
        subjects = [subject for subject in fix.subjects if subject != HOST]
        where = f" [{', '.join(subjects)}]" if subjects else ""
        lines += [f"{number}. {fix.status.value.upper()} {fix.id}{where}", f"   {fix.message}"]
        whose = f"for you: {fix.for_you}" if fix.for_you else "fix --apply does it"
        lines += [f"   fix: {fix.remedy.fix}", f"   risk: {fix.remedy.risk}; {whose}"]
        if fix.stops and not fix.for_you and (running := servers(facts)):
            lines.append(f"   running now: {', '.join(running)}")
        for step in fix.remedy.steps:
            lines += [f"     {line}" for line in _step_lines(step)]
        lines.append("")
    return "\n".join(lines)


def _step_lines(step: Step) -> list[str]:
    undo = shlex.join(step.undo)
    if step.write:
        back = "the file as it was, or none" + (f"; then {undo}" if undo else "")
        content = [f"  | {line}" for line in step.content.splitlines()]
        return [f"write {step.write}:", *content, f"  undo: {back}"]
    return [f"$ {shlex.join(step.run)}", f"  undo: {undo or 'none, what it changes is not kept'}"]
