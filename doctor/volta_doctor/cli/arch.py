"""`volta-doctor arch`: will this code run on this card?"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from volta_doctor.arch.model import Scan
    from volta_doctor.probe import Probe

_SUFFIXES = r"\d{2,3}[af]?"


def _required(values: tuple[str, ...]) -> list[str]:
    """Return the architectures of --require (70). Raises click.UsageError for what is none."""
    names = [name for text in values for name in text.replace(",", " ").split()]
    found = [re.fullmatch(rf"sm_?({_SUFFIXES})", name) for name in names]
    for name, match in zip(names, found, strict=True):
        if match is None:
            raise click.UsageError(f"--require: no architecture {name!r}; sm_70 is one")
    if values and not names:
        raise click.UsageError("--require names no architecture")
    return [match[1] for match in found if match]


@click.command()
@click.argument("targets", metavar="PATH|WHEEL|VENV|PID...", nargs=-1, required=True)
@click.option(
    "--gpu", metavar="NAME", help="Judge for this card (v100, 7.0, sm_70), not this host's."
)
@click.option("--driver", metavar="VERSION", help="Judge for this driver (580.95.05).")
@click.option(
    "--require",
    metavar="sm_70",
    multiple=True,
    help="Exit 2 where a file with device code has none for it, 0 where all have,"
    " 3 where one cannot be read or there is none.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option("-v", "--verbose", is_flag=True, help="Every file with all that it carries.")
@click.pass_context
def arch(
    context: click.Context,
    targets: tuple[str, ...],
    gpu: str | None,
    driver: str | None,
    require: tuple[str, ...],
    form: str,
    verbose: bool,
) -> None:
    """Say which machine code is in files, wheels, environments and processes, and if it runs.

    The first thing that does not go with another (card, driver, CUDA, torch, extensions, libraries,
    flags) is named with the smallest change that mends it. Without --gpu the cards of this host
    count, with none a V100.
    """
    wanted = _required(require)
    if "" in targets:
        raise click.UsageError("a target is empty: a variable that is not set?")
    if driver is not None and not re.fullmatch(r"\d{3}(\.\d+){1,2}", driver):
        raise click.UsageError(f"--driver {driver}: a version is meant, such as 580.95.05")
    from volta_doctor.arch import host, join
    from volta_doctor.cli.output import show, stdout
    from volta_doctor.probe import CannotLook, Probe

    probe = Probe()
    try:
        # A gate asks what is in files, whatever cards this machine has.
        name = f"sm_{wanted[0].rstrip('af')}" if wanted and gpu is None else gpu
        known_by = "by --require" if gpu is None else "by --gpu"
        card = None if name is None else host.card_named(name, known_by)
    except ValueError as reason:
        raise click.UsageError(f"--gpu: {reason}") from reason
    try:
        scans = [_scan(probe, target) for target in targets]
        report = join.report(probe, scans, host.look(probe, card, driver), wanted)
    except CannotLook as reason:
        raise click.ClickException(str(reason)) from reason
    file = stdout(form)
    if form == "json":
        import msgspec

        show(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        from volta_doctor.arch import table

        show(table.render(report, file, verbose))
    context.exit(report.exit_code)


def _scan(probe: "Probe", target: str) -> "Scan":
    """Read a target, digits being a path before they are a process. Raises CannotLook."""
    from volta_doctor.arch import process, reader

    path = str(Path(target).absolute())
    is_process = process.is_pid(target) and not os.path.lexists(probe.path(path))
    return reader.scan(probe, target if is_process else path)
