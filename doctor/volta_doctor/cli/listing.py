"""`volta-doctor list`: every check with its claim."""

import click

from volta_doctor.cli.options import Scope, extend, scoped


@click.command("list")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@scoped("plugins")
def listing(form: str, scope: Scope) -> None:
    """List every check by area, with its levels and its claim."""
    from volta_doctor.catalog import checks
    from volta_doctor.cli.output import show, stdout

    stdout(form)
    extend(scope)
    rows = checks().values()
    if form == "json":
        import json

        keys = ("id", "area", "title", "gpu", "active", "needs", "risk", "fix", "source")
        listed = [
            {key: getattr(row, key) for key in keys} | {"levels": list(row.rule)} for row in rows
        ]
        show(json.dumps({"schema": 1, "checks": listed}, indent=2))
        return
    width = max(len(row.id) for row in rows)
    lines: list[str] = []
    for area in dict.fromkeys(row.area for row in rows):
        lines.append(f"{area}:")
        for row in rows:
            if row.area == area:
                levels = "/".join(level for level in row.rule if level != "ok")
                marks = "".join(f" [{mark}]" for mark in (row.gpu, "active" * row.active) if mark)
                lines.append(f"  {row.id:{width}}  {levels:9}  {row.title}{marks}")
    show("\n".join(lines))
