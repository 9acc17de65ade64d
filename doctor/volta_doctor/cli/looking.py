"""From a scope to a report: takes or reads the snapshot, judges it, holds it against waivers."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from volta_doctor.cli.options import Scope, extend, selected

if TYPE_CHECKING:
    from volta_doctor.facts.model import Snapshot
    from volta_doctor.probe import Probe
    from volta_doctor.report import Report
    from volta_doctor.waivers import Waiver

_CLEAR_LINE = "\r\x1b[K"


class Look(NamedTuple):
    """What was seen, and what it amounts to."""

    snapshot: "Snapshot"
    report: "Report"


def look(scope: Scope) -> Look:
    """Look at the host, or read the snapshot, and judge it."""
    extend(scope)
    selected(scope)  # wrong usage before a look that may take minutes
    older = read(scope.since) if scope.since else None
    snapshot = read(scope.snapshot) if scope.snapshot else taken(scope)
    return judged(scope, since(snapshot, older) if older else snapshot)


def judged(scope: Scope, snapshot: "Snapshot") -> Look:
    """Judge a snapshot; the waivers that hold are those of the day on which it was taken."""
    from volta_doctor import report, waivers
    from volta_doctor.judge import judge
    from volta_doctor.profile import SITE, detect

    borne = waivers_of(scope)
    with usage_errors():
        profile = detect(snapshot.facts, scope.profile, None if scope.snapshot else SITE)
    day = date.fromisoformat(snapshot.taken[:10])
    findings = judge(snapshot.facts, selected(scope), profile, borne, day)
    notes = waivers.notes(findings, borne, day)
    return Look(snapshot, report.build(snapshot, profile, findings, notes))


def waivers_of(scope: Scope) -> "list[Waiver]":
    """Read the waivers that hold; a file of them may speak of hosts and of models."""
    from volta_doctor import waivers
    from volta_doctor.catalog import checks
    from volta_doctor.catalog.model import model_checks

    files = [Path(scope.waivers)] if scope.waivers else []
    if not scope.waivers and not scope.snapshot:
        files = waivers.default_files(os.environ)
    known = checks().keys() | model_checks().keys()
    with usage_errors():
        return [waiver for file in files for waiver in waivers.load(file, known)]


def taken(scope: Scope, sections: set[str] | None = None) -> "Snapshot":
    """Look at this host: at the given sections, else at all that the selected checks need."""
    from volta_doctor.facts.gather import gather
    from volta_doctor.judge import sections_of

    wanted = sections_of(selected(scope)) if sections is None else sections
    if not scope.active:
        wanted = wanted - {"active"}
    with progress() as tell:
        return gather(probe(scope.root), wanted, progress=tell)


def since(snapshot: "Snapshot", older: "Snapshot") -> "Snapshot":
    """Count from an older snapshot on: it takes the place of the history."""
    from msgspec import structs

    from volta_doctor.facts import history
    from volta_doctor.facts.model import Section
    from volta_doctor.probe import CannotLook

    try:
        found = Section(ok=True, data=history.from_snapshot(older))
    except CannotLook as reason:
        found = Section(ok=False, error=str(reason))
    return structs.replace(snapshot, facts=structs.replace(snapshot.facts, history=found))


def read(path: str) -> "Snapshot":
    """Read a snapshot; - is stdin. Raises click.ClickException naming the file and its fault."""
    from volta_doctor import files
    from volta_doctor.facts import model

    try:
        data = files.within(sys.stdin.buffer) if path == "-" else files.read(path)
        return model.decode(data)
    except (OSError, model.SnapshotError) as error:
        name = "stdin" if path == "-" else path
        why = error.strerror if isinstance(error, OSError) else error
        raise click.ClickException(f"{name}: {why}") from error


def probe(root: str | None) -> "Probe":
    """Return the way to this host; `root` stands in for $VOLTA_ROOT."""
    from volta_doctor.probe import Probe

    return Probe(env={**os.environ, "VOLTA_ROOT": str(Path(root).absolute())} if root else None)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what is wrong with a file that the user names into wrong usage."""
    from volta_doctor.profile import ProfileError
    from volta_doctor.waivers import WaiversError

    try:
        yield
    except (ProfileError, WaiversError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def progress() -> Iterator[Callable[[Sequence[str]], None]]:
    """Give a function that shows on a terminal what is still being looked at; gone afterwards."""
    terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def tell(names: Sequence[str]) -> None:
        if terminal:
            room = shutil.get_terminal_size().columns - 1
            line = f"looking: {', '.join(names)}"
            line = line if len(line) <= room else f"{line[: max(room - 3, 0)]}..."
            click.echo(f"{_CLEAR_LINE}{line}", nl=False, err=True)

    try:
        yield tell
    finally:
        if terminal:
            click.echo(_CLEAR_LINE, nl=False, err=True)
