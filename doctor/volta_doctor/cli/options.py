"""What to look at and what to judge: the options that the judging verbs share."""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from volta_doctor.catalog import Row


class Named(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """The name of a file or a directory; empty it is a shell variable that is not set."""

    name = "path"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises click.BadParameter where there is none."""
        if not value:
            self.fail("it is empty", param, ctx)
        return value


class Number(click.FloatRange):
    """A number in a range; "nan" compares with none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises click.BadParameter."""
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number", param, ctx) if number != number else number


COUNT = click.IntRange(1, (1 << 63) - 1)  # of tokens or requests, as an engine's 64 bits hold it


@dataclass(frozen=True)
class Scope:
    """Which host and which checks; a verb without one of the options has its default.

    `select` and `ignore` hold what was given, comma lists of ids and areas.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    snapshot: str | None = None
    profile: str | None = None
    waivers: str | None = None
    since: str | None = None
    root: str | None = None
    active: bool = False
    plugins: tuple[str, ...] = ()


_OPTIONS = {
    "snapshot": click.option(
        "--snapshot",
        type=Named(),
        metavar="FILE",
        help="Judge saved facts (- is stdin), not this host.",
    ),
    "select": click.option(
        "--select", metavar="IDS", multiple=True, help="Only these checks and areas (a,b,c)."
    ),
    "ignore": click.option(
        "--ignore", metavar="IDS", multiple=True, help="All but these checks and areas."
    ),
    "profile": click.option(
        "--profile",
        metavar="NAME|FILE",
        help="Judge by this profile, or a site's own FILE.yaml, whatever cards there are.",
    ),
    "waivers": click.option(
        "--waivers",
        type=Named(),
        metavar="FILE",
        help="Waivers, in place of /etc/volta-doctor/waivers.yaml and"
        " ~/.config/volta-doctor/waivers.yaml.",
    ),
    "plugins": click.option(
        "--plugins",
        type=Named(),
        metavar="DIR",
        multiple=True,
        help="A directory of your own checks, besides /etc/volta-doctor/checks.d.",
    ),
    "since": click.option(
        "--since",
        type=Named(),
        metavar="FILE",
        help="Count errors from this earlier snapshot on, not from the last look.",
    ),
    "active": click.option(
        "--active",
        is_flag=True,
        help="Measure too: loads the GPUs for minutes; refused beside a running server.",
    ),
    "root": click.option(
        "--root",
        type=Named(),
        metavar="DIR",
        help="Install root to judge: $VOLTA_ROOT, else /opt/volta or ~/.local/share/volta.",
    ),
}
_OF_A_HOST = ("root", "active")


def scoped(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the named options, all by default; it gets them as one `scope`."""
    taken = names or tuple(_OPTIONS)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> None:
            scope = Scope(**{f.name: given.pop(f.name) for f in fields(Scope) if f.name in taken})
            for name in _OF_A_HOST:
                if scope.snapshot and getattr(scope, name):
                    raise click.UsageError(
                        f"--{name} has no effect with --snapshot: choose one of them"
                    )
            command(*args, scope=scope, **given)

        for name in reversed(taken):
            run = _OPTIONS[name](run)
        return run

    return decorate


def extend(scope: Scope) -> None:
    """Add the site's checks; what is installed on this host says nothing of a snapshot."""
    from volta_doctor import plugins

    site = plugins.directories(os.environ, site=not scope.snapshot)
    plugins.load([*site, *map(Path, scope.plugins)])


def selected(scope: Scope, rows: "Mapping[str, Row] | None" = None) -> "list[Row]":
    """Return the rows to judge, of the given ones or those of a host.

    Raises click.UsageError for a name that is no check and no area.
    """
    from volta_doctor.catalog import checks, nearest

    rows = checks() if rows is None else rows
    areas = {row.area for row in rows.values()}

    def ids(option: str, given: tuple[str, ...]) -> set[str]:
        names = [part for text in given for part in text.replace(",", " ").split()]
        for name in names:
            if name not in rows and name not in areas:
                like = _elsewhere(name) or nearest(name, [*rows, *areas])
                raise click.UsageError(f"--{option}: no check or area {name!r}{like}")
        if given and not names:
            raise click.UsageError(f"--{option} names no check")
        return {row.id for row in rows.values() if row.id in names or row.area in names}

    wanted = ids("select", scope.select) if scope.select else set(rows)
    wanted -= ids("ignore", scope.ignore)
    if not wanted:
        raise click.UsageError("--ignore leaves no check of those selected")
    return [row for row in rows.values() if row.id in wanted]


def _elsewhere(name: str) -> str:
    """Say which verb makes a check or an area of checks, where any does."""
    from volta_doctor.catalog import checks
    from volta_doctor.catalog.model import model_checks

    for rows, verb in ((checks(), "check"), (model_checks(), "model PATH")):
        if name in rows or name in {row.area for row in rows.values()}:
            return f" of this verb; volta-doctor {verb} --select {name} judges by it"
    return ""
