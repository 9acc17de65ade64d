"""The command line. Imports are inside the commands: --help must come at once."""

import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from volta_doctor.catalog import Row
    from volta_doctor.probe import Probe

_WRONG_USAGE = 64
_COULD_NOT_TELL = 3
_INTERRUPTED = 130

_EPILOG = """Exit codes: 0 healthy, 1 warnings, 2 failures, 3 could not tell (a needed fact could
not be had), 64 wrong usage."""


@click.group(epilog=_EPILOG)
@click.version_option(package_name="volta-stack", prog_name="volta-doctor")
def cli() -> None:
    """Say what is wrong with a V100 host, why, and the exact fix."""


_root = click.option(
    "--root",
    metavar="DIR",
    help="Install root to judge: $VOLTA_ROOT, else /opt/volta or ~/.local/share/volta.",
)


@cli.command(epilog=_EPILOG)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For a reader, or for a program.",
)
@click.option("--snapshot", type=click.File("rb"), help="Judge saved facts, not this host.")
@click.option(
    "--profile",
    metavar="NAME",
    help="Judge by this profile, or a site's own FILE.yaml, whatever cards there are.",
)
@click.option("--select", metavar="IDS", multiple=True, help="Only these checks (a,b,c).")
@_root
@click.option("-v", "--verbose", is_flag=True, help="Every finding with all its evidence.")
@click.pass_context
def check(
    context: click.Context,
    form: str,
    snapshot: IO[bytes] | None,
    profile: str | None,
    select: tuple[str, ...],
    root: str | None,
    verbose: bool,
) -> None:
    """Judge this host, or a snapshot of one."""
    rows = _selected(select)
    if snapshot and root:
        raise click.UsageError("--root has no effect with --snapshot: choose one of them")
    from volta_doctor import report
    from volta_doctor.facts import model
    from volta_doctor.judge import judge, sections_of
    from volta_doctor.profile import ProfileError, detect

    if snapshot:
        try:
            facts = model.decode(snapshot.read())
        except model.SnapshotError as error:
            raise click.ClickException(f"{snapshot.name}: {error}") from error
    else:
        from volta_doctor.facts.gather import gather

        facts = gather(_probe(root), sections_of(rows))
    try:
        chosen = detect(facts.facts, profile)
    except ProfileError as error:
        raise click.ClickException(str(error)) from error
    result = report.build(facts, chosen, judge(facts.facts, rows, chosen))
    if form == "table":
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a log may hold anything
    else:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # as JSON must be
    _print(report.FORMATS[form](result, sys.stdout, verbose))
    context.exit(result.summary.exit_code)


@cli.command()
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to; - is stdout.")
@_root
def snapshot(output: str, root: str | None) -> None:
    """Save this host's facts, for check --snapshot on any machine."""
    from volta_doctor.facts import model
    from volta_doctor.facts.gather import gather

    data = model.encode(gather(_probe(root)))
    if output == "-":
        click.echo(data, nl=False)
        return
    part = Path(f"{output}.part")
    try:
        part.write_bytes(data)
        part.replace(output)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise click.ClickException(f"{output}: {error.strerror}") from error


def _print(text: str) -> None:
    """Write to stdout; a reader that has left (head, less) does not change the verdict."""
    try:
        print(text, flush=True)  # noqa: T201 - the report itself
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _selected(select: tuple[str, ...]) -> "list[Row]":
    from volta_doctor.catalog import checks

    rows = checks()
    ids = [part for text in select for part in text.replace(",", " ").split()]
    for check_id in ids:
        if check_id not in rows:
            raise click.UsageError(f"--select: no check {check_id!r}; there are {', '.join(rows)}")
    if select and not ids:
        raise click.UsageError("--select names no check")
    return [row for row in rows.values() if not ids or row.id in ids]


def _probe(root: str | None) -> "Probe":
    from volta_doctor.probe import Probe

    return Probe(env={**os.environ, "VOLTA_ROOT": str(Path(root).absolute())} if root else None)


def main() -> None:
    """Run the command line with the exit codes that every verb shares."""
    try:
        code = cli.main(prog_name="volta-doctor", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = _WRONG_USAGE
    except click.Abort:
        code = _INTERRUPTED
    except Exception:
        # Python's own exit code for this is 1, which here would read as "warnings".
        import traceback

        traceback.print_exc()
        code = _COULD_NOT_TELL
    sys.exit(code)
