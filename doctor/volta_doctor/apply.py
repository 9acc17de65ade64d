"""Takes the steps of fixes on this host: each is written down, and nothing is left half-done."""

import contextlib
import fcntl
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from volta_doctor import command
from volta_doctor.findings import Step
from volta_doctor.fix import Fix
from volta_doctor.journal import Entry, Journal, State, StepFailed

STEP_S = 900.0  # a server that loads a large model is up only minutes after its restart
# Commands that need no more rights than the directories of their paths do.
_OF_FILES = {"mv", "cp", "ln", "mkdir", "touch", "chmod", "volta-doctor"}

# Ctrl-C, and what ends a session whose connection is lost.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Tell = Callable[[str], None]


class _Owed(NamedTuple):
    """A step that ends several fixes alike.

    It is in the journal before their other steps: should this process be killed in between, taking
    these back still ends with it.
    """

    entry: Entry
    fixes: list[Fix]


class Applier:
    """Takes fixes one by one.

    What ends several fixes alike (a reload, a restart) is done once, in finish(). Ctrl-C lets the
    step at work end, takes back what its fix has begun, and then raises KeyboardInterrupt.
    """

    def __init__(self, journal: Journal, tell: Tell) -> None:
        self.failed: list[Fix] = []
        self._journal, self._tell = journal, tell
        self._owed: dict[tuple[str, ...], _Owed] = {}

    def take(self, fix: Fix) -> None:
        """Take a fix's own steps; a failed one ends it and is told with the way back."""
        own, owed = split(fix.remedy.steps)
        mine: list[Entry] = []
        with held_interrupts(self._tell) as interrupted:
            try:
                for step in owed:
                    self._owe(fix, step)
            except OSError as error:
                self._fail([fix], f"the journal {self._journal.path}: {error.strerror}")
                return
            for step in own:
                if self._journal.has_done(step):
                    self._tell(f"done already: {shown(step)}")
                    continue
                if interrupted():
                    self._journal.undo(mine, run, self._tell)
                    for debt in self._owed.values():
                        debt.fixes[:] = [other for other in debt.fixes if other is not fix]
                    raise KeyboardInterrupt
                if not self._do([fix], step, mine):
                    break
            if interrupted():
                raise KeyboardInterrupt

    def finish(self) -> None:
        """Do what the fixes taken so far still need, whether or not Ctrl-C ended them early."""
        with held_interrupts(self._tell):
            for argv, (entry, fixes) in self._owed.items():
                if whole := [fix for fix in fixes if fix not in self.failed]:
                    entry.id = _ids(whole)
                    self._do(whole, Step(run=list(argv), undo=list(argv)), [], entry)
                else:
                    self._end(entry, "undone")

    def _owe(self, fix: Fix, step: Step) -> None:
        argv = tuple(step.run)
        if argv not in self._owed:
            self._owed[argv] = _Owed(self._journal.begin(fix.id, step), [])
        self._owed[argv].fixes.append(fix)

    def _do(
        self, fixes: Sequence[Fix], step: Step, mine: list[Entry], entry: Entry | None = None
    ) -> bool:
        self._tell(f"{_ids(fixes)}: {shown(step)}")
        before = [*mine]
        try:
            entry = entry or self._journal.begin(_ids(fixes), step)
            mine.append(entry)
            if step.write:
                self._journal.write_file(entry, step.content)
            else:
                run(step.run)
        except (OSError, StepFailed) as error:
            if entry:
                self._end(entry, "failed")
            why = error.strerror if isinstance(error, OSError) else error
            self._fail(fixes, f"{shown(step)}: {why}")
            for done in reversed(before):
                self._tell(f"  done before, and undone by: {way_back(done)}")
            return False
        self._end(entry, "done")
        return True

    def _end(self, entry: Entry, state: State) -> None:
        try:
            self._journal.end(entry, state)
        except OSError as error:  # what it says still ("begun") leads to the same way back
            self._tell(f"the journal {self._journal.path}: {error.strerror}")

    def _fail(self, fixes: Sequence[Fix], text: str) -> None:
        self.failed += fixes
        self._tell(f"{_ids(fixes)}: FAILED: {text}")


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
    if argv[0] == "volta-doctor":  # this one: none need be on PATH
        argv = [sys.executable, "-m", "volta_doctor", *argv[1:]]
    try:
        done = command.run(argv, {**os.environ, "LC_ALL": "C", "PATH": path}, STEP_S)
    except OSError as error:
        raise StepFailed(f"{argv[0]}: {error.strerror}") from error
    if done.exit_code != 0:
        raise StepFailed(done.complaint)


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Be the only one who takes fixes, or takes them back, with journals in this directory.

    Raises StepFailed where another does, or where no journal can be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise StepFailed(f"no journal can be kept in {directory}: {error.strerror}") from error
    try:
        if not os.access(directory, os.W_OK):
            raise StepFailed(f"no journal can be kept in {directory}: it cannot be written to")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StepFailed("another volta-doctor is at work on fixes; wait for it") from None
        yield
    finally:
        os.close(lock)


def end_as_by_ctrl_c() -> None:
    """From now on a lost connection, or a kill, ends this process as Ctrl-C does."""
    for number in INTERRUPTS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def held_interrupts(tell: Tell) -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C and the end of the session back; the function given says if there was one."""
    asked: list[int] = []

    def note(number: int, _frame: object) -> None:
        if not asked:
            tell(f"stopping when the step at work has ended, within {STEP_S:.0f} s")
        asked.append(number)

    # nohup has SIGHUP ignored
    held = [number for number in INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, note) for number in held]
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in zip(held, before, strict=True):
            signal.signal(number, handler)


def _ids(fixes: Sequence[Fix]) -> str:
    return ", ".join(dict.fromkeys(fix.id for fix in fixes))


def _writable(path: Path) -> bool:
    there = next(parent for parent in path.parents if parent.exists())
    return os.access(there, os.W_OK)
