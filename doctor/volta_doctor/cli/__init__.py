"""The command line: one module a verb.

The modules of verbs import the rest of the doctor inside their functions: --help must come at once.
"""

import os
import sys

import click

from volta_doctor.cli.arch import arch
from volta_doctor.cli.aside import set_aside
from volta_doctor.cli.check import check
from volta_doctor.cli.diff import diff
from volta_doctor.cli.explain import explain
from volta_doctor.cli.fix import fix
from volta_doctor.cli.listing import listing
from volta_doctor.cli.model import model
from volta_doctor.cli.output import unforeseen
from volta_doctor.cli.snapshot import snapshot
from volta_doctor.cli.watch import watch
from volta_doctor.cli.why import why

_WRONG_USAGE = 64
_COULD_NOT_TELL = 3
_INTERRUPTED = 130


@click.group(
    epilog="Exit codes of every verb: 0 healthy, 1 warnings, 2 failures, 3 could not tell (a"
    " needed fact could not be had), 64 wrong usage."
)
@click.version_option(package_name="volta-stack", prog_name="volta-doctor")
def cli() -> None:
    """Say what is wrong with a V100 host, why, and the exact fix."""


for verb in (check, model, why, fix, watch, snapshot, diff, arch, explain, listing, set_aside):
    cli.add_command(verb)


def open_standard_streams() -> None:
    """Lead those that the caller has closed to nowhere.

    Else the next file that is opened would get the number of stdout, and the report.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def main() -> None:
    """Run the command line with the exit codes that every verb shares."""
    open_standard_streams()
    try:
        code = cli.main(prog_name="volta-doctor", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = _WRONG_USAGE
    except click.Abort:
        code = _INTERRUPTED
    except Exception as error:
        # Python's own exit code for this is 1, which here would read as "warnings".
        code = _COULD_NOT_TELL
        unforeseen(error, "the report")
    sys.exit(code)
