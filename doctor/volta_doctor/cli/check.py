"""`volta-doctor check`: judge this host, or a snapshot of one."""

import click

from volta_doctor.cli.options import Named, Scope, scoped


class Format(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A name in report.FORMATS, looked up only when the option is used or its help is read."""

    name = "format"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return the names."""
        return "|".join(self._names())

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises click.BadParameter for another."""
        names = self._names()
        if value not in names:
            self.fail(f"no format {value!r}; there are {', '.join(names)}", param, ctx)
        return value

    @staticmethod
    def _names() -> list[str]:
        from volta_doctor.report import FORMATS

        return list(FORMATS)


@click.command()
@click.option("--format", "form", type=Format(), default="table", help="table is for a reader.")
@click.option(
    "-o", "--output", type=Named(), metavar="FILE", help="Write the report there; it appears whole."
)
@click.option("-v", "--verbose", is_flag=True, help="Every finding with all its evidence.")
@scoped()
@click.pass_context
def check(
    context: click.Context, scope: Scope, form: str, output: str | None, verbose: bool
) -> None:
    """Judge this host, or a snapshot of one."""
    from volta_doctor.cli.looking import look, probe
    from volta_doctor.cli.output import publish

    seen = look(scope)
    publish(seen.report, form, output, verbose)
    if not scope.snapshot:
        from volta_doctor.facts import history

        problem = history.remember(probe(scope.root), seen.snapshot)
        if problem and verbose:
            click.echo(f"not remembered for the next look: {problem}", err=True)
    context.exit(seen.report.summary.exit_code)
