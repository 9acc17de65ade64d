"""`volta-doctor list`: every check with its claim."""

import click

from volta_doctor.cli.options import Scope, extend, scoped

_KEYS = ("id", "area", "title", "gpu", "active", "needs", "risk", "fix", "source")


@click.command("list")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@scoped("plugins")
def listing(form: str, scope: Scope) -> None:
    """List every check of a host and of a checkpoint by area, with its levels and its claim."""
    from volta_doctor.catalog import checks
    from volta_doctor.catalog.model import model_checks
    from volta_doctor.cli.output import show, stdout

    stdout(form)
    extend(scope)
    rows = [(verb, row) for verb, of_verb in (("check", checks()), ("model", model_checks()))
            for row in of_verb.values()]  # fmt: skip
    if form == "json":
        import json

        listed = [
            {"scope": verb, **{key: getattr(row, key) for key in _KEYS}, "levels": list(row.rule)}
            for verb, row in rows
        ]
        show(json.dumps({"schema": 1, "checks": listed}, indent=2))
        return
    width = max(len(row.id) for _, row in rows)
    lines: list[str] = []
    for verb, area in dict.fromkeys((verb, row.area) for verb, row in rows):
        lines.append(f"{area} (volta-doctor {verb}):")
        for _, row in (pair for pair in rows if (pair[0], pair[1].area) == (verb, area)):
            levels = "/".join(level for level in row.rule if level != "ok")
            marks = "".join(f" [{mark}]" for mark in (row.gpu, "active" * row.active) if mark)
            lines.append(f"  {row.id:{width}}  {levels:9}  {row.title}{marks}")
    show("\n".join(lines))
