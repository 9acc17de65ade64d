"""`volta-doctor fix`: the plan of remedies, and taking the safe ones."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from volta_doctor.cli.options import Named, Scope, scoped

if TYPE_CHECKING:
    from volta_doctor.cli.looking import Look
    from volta_doctor.fix import Fix

_ALL_TAKEN_BACK, _NOT_ALL = 0, 2


@click.command()
@click.option("--apply", "apply_it", is_flag=True, help="Take the safe ones, asking before each.")
@click.option("--yes", is_flag=True, help="With --apply: do not ask.")
@click.option(
    "--undo", type=Named(), metavar="JOURNAL", help="Take back what an earlier --apply did."
)
@scoped("snapshot", "select", "ignore", "profile", "waivers", "plugins", "since", "root")
@click.pass_context
def fix(context: click.Context, scope: Scope, apply_it: bool, yes: bool, undo: str | None) -> None:
    """Print what to do about each problem; --apply does what is safe.

    The plan tells the risk, the steps and the way back. Causes come without their consequences.
    --apply takes the steps of risk none, reconfigure and restart; reboots, builds and hardware are
    for you. What is merely worth knowing (info) is taken in where --select names checks.
    """
    if (apply_it or undo) and os.environ.get("VOLTA_DOCTOR_SYSROOT", "/") != "/":
        raise click.UsageError("fixes act on this host, and $VOLTA_DOCTOR_SYSROOT names another")
    if undo:
        if apply_it or scope != Scope():
            raise click.UsageError("--undo goes alone: the journal says what to take back")
        with _alone(scope):
            context.exit(_undo(Path(undo)))
    if apply_it and scope.snapshot:
        raise click.UsageError("--apply acts on this host: it cannot go with --snapshot")
    if yes and not apply_it:
        raise click.UsageError("--yes has no effect without --apply")
    if apply_it and not yes and not sys.stdin.isatty():
        raise click.UsageError("--apply asks before each fix and stdin is no terminal: add --yes")
    with _alone(scope) if apply_it else contextlib.nullcontext():
        context.exit(_planned(scope, apply_it, yes))


def _planned(scope: Scope, apply_it: bool, yes: bool) -> int:
    from volta_doctor import fix as fixing
    from volta_doctor.cli.looking import look
    from volta_doctor.cli.output import show, stdout
    from volta_doctor.words import printable

    before = look(scope)
    fixes = fixing.plan(before.report.findings, info=bool(scope.select))
    stdout("table")
    width = shutil.get_terminal_size().columns
    head = "\n".join(fixing.wrapped(_heading(before, fixes), width))
    show(printable(f"{head}\n\n{fixing.text(fixes, before.snapshot.facts, width)}"))
    code = before.report.summary.exit_code
    if apply_it and any(not fix.for_you for fix in fixes):
        code = _apply(scope, before, [fix for fix in fixes if not fix.for_you], yes)
    return code


def _heading(look: "Look", fixes: "list[Fix]") -> str:
    ours = sum(not fix.for_you for fix in fixes)
    host = look.report.host or "unnamed host"
    counts = f"{len(fixes)} to fix, {ours} of them by fix --apply" if fixes else "nothing to fix"
    return f"{host}, {look.report.taken}: {look.report.summary.verdict}; {counts}"


def _apply(scope: Scope, before: "Look", fixes: "list[Fix]", yes: bool) -> int:
    from volta_doctor.apply import Applier, end_as_by_ctrl_c, needs_root, shown
    from volta_doctor.cli.looking import look
    from volta_doctor.diff import turns
    from volta_doctor.journal import Journal

    if rootly := [step for fix in fixes for step in fix.remedy.steps if needs_root(step)]:
        raise click.ClickException(
            f"nothing done: {len(rootly)} of the steps need root, the first is"
            f" `{shown(rootly[0])}`: run again with sudo, or --select what needs none"
        )
    name = f"fix-{before.report.taken[:19].replace(':', '')}-{os.getpid()}.yaml"
    journal = Journal(_journals(scope) / name, before.report.host, before.report.taken)
    applier = Applier(journal, _say)
    end_as_by_ctrl_c()
    try:
        for fix in fixes:
            if cause := next((f for f in applier.failed if fix.depends_on(f)), None):
                _say(f"{fix.id}: left out, as {cause.id} could not be fixed")
            elif yes or _agreed(fix, before):
                applier.take(fix)
    except KeyboardInterrupt:
        _say("stopped: no other fix is begun")
    applier.finish()
    if not journal.entries:
        return before.report.summary.exit_code
    _say(f"journal: {journal.path}\ntake it back: volta-doctor fix --undo {journal.path}")
    after = look(scope)
    for turn in turns(before.report.findings, after.report.findings):
        click.echo(f"{turn.kind}: {turn.text}")
    click.echo(f"{after.report.summary.verdict} (before: {before.report.summary.verdict})")
    return after.report.summary.exit_code


def _journals(scope: Scope) -> Path:
    from volta_doctor.cli.looking import probe
    from volta_doctor.facts.history import state_file

    state = state_file(probe(scope.root))
    if state is None:
        raise click.ClickException("nothing done: no place for the journal, as HOME is not set")
    return Path(state).parent / "fixes"


@contextlib.contextmanager
def _alone(scope: Scope) -> Iterator[None]:
    from volta_doctor.apply import alone
    from volta_doctor.journal import StepFailed

    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(alone(_journals(scope)))
        except StepFailed as reason:
            raise click.ClickException(f"nothing done: {reason}") from reason
        yield


def _agreed(fix: "Fix", look: "Look") -> bool:
    from volta_doctor.fix import servers

    running = servers(look.snapshot.facts, fix) if fix.stops else []
    warning = f" (running now: {', '.join(running)})" if running else ""
    steps = len(fix.remedy.steps)
    text = f"{fix.id}: take {steps} step{'s' * (steps > 1)}, risk {fix.remedy.risk}{warning}?"
    try:
        return click.confirm(text, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None


def _undo(path: Path) -> int:
    from volta_doctor.apply import held_interrupts, run
    from volta_doctor.cli.looking import probe
    from volta_doctor.journal import Journal, JournalError

    try:
        journal = Journal.load(path)
    except JournalError as error:
        raise click.ClickException(str(error)) from error
    here = probe(None).text("/proc/sys/kernel/hostname").strip()
    if journal.host not in ("", here):
        raise click.ClickException(f"{path} is of the host {journal.host}, and this is {here}")
    if all(entry.state == "undone" for entry in journal.entries):
        _say(f"{path}: all of it is taken back already")
    with held_interrupts(_say):
        return _ALL_TAKEN_BACK if journal.undo(journal.entries, run, _say) else _NOT_ALL


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone
        click.echo(text, err=True)
