"""Takes the steps of fixes on this host: each is written down, and nothing is left half-done."""

import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from volta_doctor import command
from volta_doctor.findings import Step
from volta_doctor.fix import Fix
from volta_doctor.journal import Entry, Journal, StepFailed

STEP_S = 900.0  # a server that loads a large model is up only minutes after its restart
# Commands that need no more rights than the directories of their paths do.
_OF_FILES = {"mv", "cp", "ln", "mkdir", "touch", "chmod"}

Tell = Callable[[str], None]


class Applier:
    """Takes fixes one by one.

    What ends several fixes alike (a reload, a restart) is done once, in finish(). Ctrl-C lets the
    step at work end, takes back what its fix has begun, and then raises KeyboardInterrupt.
    """

    def __init__(self, journal: Journal, tell: Tell) -> None:
        self.failed: list[Fix] = []
        self._journal, self._tell = journal, tell
        self._owed: dict[tuple[str, ...], list[Fix]] = {}

    def take(self, fix: Fix) -> None:
        """Take a fix's own steps; a failed one ends it and is told with the way back."""
        own, owed = split(fix.remedy.steps)
        mine: list[Entry] = []
        with held_interrupts(self._tell) as interrupted:
            for step in own:
                if self._journal.has_done(step):
                    self._tell(f"done already: {shown(step)}")
                    continue
                if interrupted():
                    self._journal.undo(mine, run, self._tell)
                    raise KeyboardInterrupt
                if not self._do([fix], step, mine):
                    owed = []
                    break
            for step in owed:
                self._owed.setdefault(tuple(step.run), []).append(fix)
            if interrupted():
                raise KeyboardInterrupt

    def finish(self) -> None:
        """Do what the fixes taken so far still need, whether or not Ctrl-C ended them early."""
        with held_interrupts(self._tell):
            for argv, fixes in self._owed.items():
                if not all(fix in self.failed for fix in fixes):
                    self._do(fixes, Step(run=list(argv), undo=list(argv)), [])

    def _do(self, fixes: Sequence[Fix], step: Step, mine: list[Entry]) -> bool:
        ids = ", ".join(fix.id for fix in fixes)
        self._tell(f"{ids}: {shown(step)}")
        entry = self._journal.begin(ids, step)
        mine.append(entry)
        try:
            if step.write:
                self._journal.write_file(entry, step.content)
            else:
                run(step.run)
        except (OSError, StepFailed) as error:
            self._journal.end(entry, "failed")
            self.failed += fixes
            self._tell(f"{ids}: FAILED: {shown(step)}: {error}")
            for done in reversed(mine[:-1]):
                self._tell(f"  done before, and undone by: {way_back(done)}")
            return False
        self._journal.end(entry, "done")
        return True


def split(steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """Return a fix's own steps, and those at its end that may as well be done once for all."""
    own = list(steps)
    owed: list[Step] = []
    while own and own[-1].run and own[-1].run == own[-1].undo:
        owed.insert(0, own.pop())
    return own, owed


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


def way_back(entry: Entry) -> str:
    """Return what takes a step back, in one line."""
    if entry.write:
        put = f"mv {entry.backup} {entry.write}" if entry.backup else f"rm {entry.write}"
        return f"{put}; {shlex.join(entry.undo)}" if entry.undo else put
    return shlex.join(entry.undo) or "nothing"


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
def held_interrupts(tell: Tell) -> Iterator[Callable[[], bool]]:
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
