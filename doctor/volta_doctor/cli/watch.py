"""`volta-doctor watch`: look again and again."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from volta_doctor.cli.options import Scope, scoped, selected

if TYPE_CHECKING:
    from volta_doctor.diff import Turn
    from volta_doctor.facts.model import Snapshot
    from volta_doctor.report import Report

    Draw = Callable[[Report, Sequence[Turn]], None]

# What took its collector longer than _QUICK_S is looked at again only every _ALL_S seconds.
_QUICK_S = 0.2
_ALL_S = 60.0


@click.command()
@click.option(
    "-n",
    "--interval",
    metavar="SECONDS",
    type=click.IntRange(1, 86_400),
    default=5,
    show_default=True,
    help="From one look to the next; what takes long to read is read once a minute.",
)
@click.option("-v", "--verbose", is_flag=True, help="Every finding with all its evidence.")
@scoped("select", "ignore", "profile", "waivers", "plugins", "since", "root")
@click.pass_context
def watch(context: click.Context, scope: Scope, interval: int, verbose: bool) -> None:
    """Judge this host again and again, and mark what changed.

    Ctrl-C ends it. Not on a terminal, it writes a new block whenever a verdict changed. The exit
    code is that of the last look.
    """
    from volta_doctor.cli import looking
    from volta_doctor.diff import turns

    older = looking.read(scope.since) if scope.since else None
    last = looking.look(scope)
    full = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError), _canvas(verbose) as draw:
        draw(last.report, [])
        while True:
            time.sleep(interval)
            due = time.monotonic() - full > _ALL_S
            snapshot = looking.taken(scope, None if due else _quick(scope, last.snapshot))
            if due:
                full = time.monotonic()
            merged = _merged(last.snapshot, snapshot)
            now = looking.judged(scope, looking.since(merged, older) if older else merged)
            draw(now.report, turns(last.report.findings, now.report.findings))
            last = now
    context.exit(last.report.summary.exit_code)


def _quick(scope: Scope, snapshot: "Snapshot") -> set[str]:
    from volta_doctor.judge import sections_of

    wanted = sections_of(selected(scope))
    return {name for name in wanted if getattr(snapshot.facts, name).seconds < _QUICK_S}


def _merged(old: "Snapshot", new: "Snapshot") -> "Snapshot":
    """Fill the sections that were not looked at this time with those of the time before."""
    from msgspec import structs

    from volta_doctor.facts.model import Section, absent

    kept = {
        name: section
        for name, section in structs.asdict(old.facts).items()
        if isinstance(section, Section) and getattr(new.facts, name) == absent()
    }
    return structs.replace(new, facts=structs.replace(new.facts, **kept))


@contextlib.contextmanager
def _canvas(verbose: bool) -> "Iterator[Draw]":
    """Give the function that shows a report and what turned since the one before."""
    from volta_doctor.cli.output import stdout
    from volta_doctor.report import FORMATS

    out = stdout("table")
    if not out.isatty():
        shown: list[Report] = []

        def block(report: "Report", turned: "Sequence[Turn]") -> None:
            if not shown or turned:
                shown[:] = [report]
                marks = "".join(f"> {turn.text}\n" for turn in turned)
                print(f"{marks}{FORMATS['table'](report, out, verbose)}\n", flush=True)  # noqa: T201

        yield block
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    marks: list[str] = []
    # Its own thread would be in the way of the collectors' forks.
    with Live(console=Console(file=out), screen=True, auto_refresh=False) as live:

        def paint(report: "Report", turned: "Sequence[Turn]") -> None:
            if turned:
                marks[:] = [f"> {report.taken}"] + [f"> {turn.text}" for turn in turned]
            text = Text("\n".join(marks), style="reverse")
            text.append_text(
                Text.from_ansi("\n" * bool(marks) + FORMATS["table"](report, out, verbose))
            )
            live.update(text, refresh=True)

        yield paint
