"""What `volta-doctor fix --apply` did on a host, step by step, and taking it back."""

import hashlib
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from volta_doctor.files import read, write
from volta_doctor.findings import Step

SCHEMA = 1
_HEAD = """\
# What `volta-doctor fix --apply` did, oldest first. To take it back:
#   volta-doctor fix --undo {path}
# or by hand, from the last step to the first: put the `backup` back (or remove the file that was
# written) and run `undo`; reloads and restarts last.
"""

State = Literal["begun", "done", "failed", "undone"]


class StepFailed(Exception):  # noqa: N818 - it is an answer, not an accident
    """A step that could not be taken, or not taken back, in words for the user."""


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step of the fix of the checks in `id`.

    Of a file: the SHA-256 of what was written, where the old one went, and the directories that
    had to be made for it.
    """

    id: str
    state: State
    run: list[str] = []
    write: str = ""
    undo: list[str] = []
    sha256: str = ""
    backup: str = ""
    made: list[str] = []

    @property
    def again(self) -> bool:
        """Whether it is taken back by doing it again: a reload, a restart."""
        return bool(self.run) and self.run == self.undo


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    schema: int
    host: str
    begun: str
    entries: list[Entry] = []


class JournalError(ValueError):
    """A journal that cannot be read; the message names the file and its fault."""


class Journal:
    """A journal on disk, written anew, as a whole, at each step; it appears with the first."""

    def __init__(self, path: Path, host: str, begun: str) -> None:
        self.path = path
        self._file = _File(schema=SCHEMA, host=host, begun=begun)

    @classmethod
    def load(cls, path: Path) -> "Journal":
        """Read one. Raises JournalError."""
        import msgspec.yaml
        import yaml

        try:
            file = msgspec.yaml.decode(read(path), type=_File)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from error
        except (msgspec.DecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
            words = " ".join(str(error).split())
            raise JournalError(f"{path}: not a journal of fix --apply: {words}") from error
        if file.schema != SCHEMA:
            raise JournalError(
                f"{path} has schema {file.schema}, this volta-doctor reads schema {SCHEMA}"
            )
        journal = cls(path, file.host, file.begun)
        journal._file = file
        return journal

    @property
    def entries(self) -> list[Entry]:
        """The steps, oldest first."""
        return self._file.entries

    @property
    def host(self) -> str:
        """The host on which it was done."""
        return self._file.host

    def begin(self, check_id: str, step: Step) -> Entry:
        """Write down that a step is about to be taken. Raises OSError."""
        entry = Entry(id=check_id, state="begun", run=step.run, write=step.write, undo=step.undo)
        if step.write:
            entry.sha256 = hashlib.sha256(step.content.encode()).hexdigest()
            target = Path(step.write)
            if target.exists():
                entry.backup = f"{target}.{self.path.stem}.bak"
            entry.made = [str(parent) for parent in target.parents if not parent.exists()]
        self.entries.append(entry)
        try:
            self._save()
        except OSError:
            self.entries.pop()  # it will not be taken
            raise
        return entry

    def end(self, entry: Entry, state: State) -> None:
        """Write down how a step ended. Raises OSError."""
        entry.state = state
        self._save()

    def has_done(self, step: Step) -> bool:
        """Say whether the very step was taken before."""
        digest = hashlib.sha256(step.content.encode()).hexdigest() if step.write else ""
        return any(
            (entry.run, entry.undo, entry.write, entry.sha256)
            == (step.run, step.undo, step.write, digest)
            and entry.state == "done"
            for entry in self.entries
        )

    def write_file(self, entry: Entry, content: str) -> None:
        """Keep the old file beside the new one, then put that in its place. Raises OSError."""
        target = Path(entry.write)
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.backup:
            shutil.copy2(target, entry.backup)
        write(target, content.encode())

    def undo(
        self,
        entries: Sequence[Entry],
        run: Callable[[Sequence[str]], None],
        tell: Callable[[str], None],
    ) -> bool:
        """Take steps back, from the last to the first; say whether all of them could be.

        A step that is taken back by doing it again (a reload, a restart) comes last, when the files
        that it reads are back. One step that cannot be taken back does not keep the others from it.
        """
        whole = True
        for entry in _undo_order(entries):
            unmade = entry.state == "failed" and entry.run and not entry.again
            if entry.state == "undone" or unmade:
                continue
            try:
                self._undo(entry, run, tell)
                self.end(entry, "undone")
            except (OSError, StepFailed) as error:
                whole = False
                tell(f"not taken back: {entry.id}: {error}")
        return whole

    def _undo(
        self, entry: Entry, run: Callable[[Sequence[str]], None], tell: Callable[[str], None]
    ) -> None:
        if entry.write:
            _put_back(entry)
            tell(f"taken back: {entry.write}")
        elif not entry.undo:
            raise StepFailed(f"nothing takes back: {shlex.join(entry.run)}")
        if entry.undo:
            tell(f"taking back: {shlex.join(entry.undo)}")
            run(entry.undo)

    def _save(self) -> None:
        import msgspec.yaml

        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(self.path, _HEAD.format(path=self.path).encode() + msgspec.yaml.encode(self._file))


def _undo_order(entries: Sequence[Entry]) -> list[Entry]:
    again: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        if entry.again:
            again.setdefault(tuple(entry.run), entry)
    return [*(entry for entry in reversed(entries) if not entry.again), *again.values()]


def _put_back(entry: Entry) -> None:
    """Restore or remove a file, unless somebody else has changed it since."""
    target, backup = Path(entry.write), Path(entry.backup) if entry.backup else None
    there = hashlib.sha256(target.read_bytes()).hexdigest() if target.exists() else None
    if there == entry.sha256:
        if backup:
            write(target, backup.read_bytes())  # keeps a link, and the file's owner and mode
            backup.unlink()
        else:
            target.unlink()
    elif entry.state == "done":
        old = f"; the old one is {backup}" if backup else ""
        raise StepFailed(f"{target} has changed since: compare it by hand{old}")
    elif backup and backup.exists():  # it was never replaced
        backup.unlink()
    for directory in entry.made:
        if Path(directory).is_dir() and not any(Path(directory).iterdir()):
            Path(directory).rmdir()
