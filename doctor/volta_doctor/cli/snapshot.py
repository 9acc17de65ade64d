"""`volta-doctor snapshot`: save the facts, for check --snapshot on any machine."""

import click

from volta_doctor.cli.options import Scope, scoped


@click.command()
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to; - is stdout.")
@click.option(
    "--redact",
    is_flag=True,
    help="Without host and user names, addresses, serials and free text; the verdict stays.",
)
@click.option("--from", "source", metavar="FILE", help="Take this snapshot (- is stdin).")
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
        from volta_doctor.redact import redacted

        saved = redacted(saved)
    data = model.encode(saved)
    if output == "-":
        click.echo(data, nl=False)
    else:
        save(output, data)
