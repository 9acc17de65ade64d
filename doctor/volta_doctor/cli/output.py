"""Where a report goes: stdout, or a file that appears whole."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from volta_doctor.report import Format, Report


def show(text: str) -> None:
    """Write to stdout; a reader that has left (head, less) does not change the verdict."""
    try:
        print(text.removesuffix("\n"), flush=True)  # noqa: T201 - the report itself
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stdout(form: str) -> TextIO:
    """Return stdout, ready for text of that format."""
    if form in ("table", "text"):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a log may hold anything
    else:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # as JSON must be
    return sys.stdout


def save(path: str, data: bytes) -> None:
    """Write a file that appears whole or not at all. Raises click.ClickException."""
    from volta_doctor.files import write

    try:
        write(Path(path), data)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error


def unforeseen(error: Exception, what: str) -> None:
    """Tell of an error that nobody expected, on stderr; `what` was to be written."""
    if isinstance(error, OSError) and error.filename is None:  # not of opening: of writing
        click.echo(f"Error: {what} cannot be written: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still in the buffer
    else:
        import traceback

        traceback.print_exception(error)


def publish(
    report: "Report",
    form: str,
    output: str | None,
    verbose: bool,
    formats: "Mapping[str, Format] | None" = None,
) -> None:
    """Write a report to a file, or to stdout, in one of the formats (report.FORMATS)."""
    from volta_doctor.report import FORMATS

    render = (formats or FORMATS)[form]
    if output is None or output == "-":
        show(render(report, stdout(form), verbose))
        return
    text = render(report, io.StringIO(), verbose)
    save(output, f"{text.removesuffix(chr(10))}\n".encode())
