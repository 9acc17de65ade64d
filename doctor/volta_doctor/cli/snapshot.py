"""`volta-doctor snapshot`: save the facts, for check --snapshot on any machine."""

from typing import TYPE_CHECKING

import click

from volta_doctor.cli.options import Named, Scope, scoped

if TYPE_CHECKING:
    from volta_doctor.facts.model import Snapshot


@click.command()
@click.option(
    "-o", "--output", type=Named(), metavar="FILE", required=True, help="Where to; - is stdout."
)
@click.option(
    "--redact",
    is_flag=True,
    help="Without names of hosts, users and units, addresses, serials and free text. The verdict"
    " stays, and so do names of models, directories and network devices: read it first.",
)
@click.option(
    "--from", "source", type=Named(), metavar="FILE", help="Take this snapshot (- is stdin)."
)
@scoped("root", "active")
def snapshot(scope: Scope, output: str, redact: bool, source: str | None) -> None:
    """Save this host's facts, for check --snapshot on any machine."""
    if source and (scope.root or scope.active):
        raise click.UsageError("--root and --active have no effect with --from: choose one")
    from volta_doctor.cli import looking
    from volta_doctor.cli.output import save
    from volta_doctor.facts import model
    from volta_doctor.facts.gather import COLLECTORS, OPT_IN

    sections = {*COLLECTORS, *OPT_IN}
    saved = looking.read(source) if source else looking.taken(scope, sections)
    if redact:
        saved = _redacted(saved)
    data = model.encode(saved)
    if output == "-":
        click.echo(data, nl=False)
    else:
        save(output, data)


def _redacted(whole: "Snapshot") -> "Snapshot":
    """Redact, and tell where a name of the site is a word that some check goes by."""
    from volta_doctor.cli.looking import judged
    from volta_doctor.redact import redacted

    result = redacted(whole)
    told = [
        {(f.id, f.status, f.count) for f in judged(Scope(snapshot="-"), side).report.findings}
        for side in (whole, result)
    ]
    if changed := sorted({check_id for check_id, *_ in told[0] ^ told[1]}):
        click.echo(f"redacting changes the verdict of: {', '.join(changed)}", err=True)
    return result
