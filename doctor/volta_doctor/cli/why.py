"""`volta-doctor why`: paste what broke, get the cause."""

import sys
from datetime import datetime, timezone

import click

from volta_doctor.cli.check import Format
from volta_doctor.cli.options import Named


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, type=Named())
@click.option("--format", "form", type=Format(), default="table", help="table is for a reader.")
@click.option(
    "-o", "--output", type=Named(), metavar="FILE", help="Write the answer there; it appears whole."
)
@click.option("-v", "--verbose", is_flag=True, help="All findings with all their evidence.")
@click.pass_context
def why(
    context: click.Context, paths: tuple[str, ...], form: str, output: str | None, verbose: bool
) -> None:
    """Say why something broke, from what it printed.

    FILE is a log, a traceback, a dump of nvidia-smi, a config.json, a unit, a snapshot, whatever
    shows it; - is stdin. Several files are one case. Exit code 3: the text does not decide.
    """
    from volta_doctor.cli.output import publish
    from volta_doctor.logs.patterns import available
    from volta_doctor.logs.sources import SourceError
    from volta_doctor.report import FORMATS
    from volta_doctor.why import answer, page

    if problem := available():
        raise click.ClickException(problem)
    if not paths and sys.stdin.isatty():
        raise click.UsageError("name a file, or pipe a text in: dmesg | volta-doctor why -")
    try:
        report = answer.of(paths or ("-",), datetime.now(timezone.utc))
    except SourceError as error:
        raise click.ClickException(str(error)) from error
    publish(report, form, output, verbose, {**FORMATS, "table": page.render})
    context.exit(report.summary.exit_code)
