"""`volta-doctor explain ID`: all that the catalogue knows of a check."""

from typing import TYPE_CHECKING

import click

from volta_doctor.cli.options import Scope, extend, scoped

if TYPE_CHECKING:
    from volta_doctor.catalog import Row

_GPU = {
    "": "any host",
    "nvidia": "hosts with an NVIDIA card",
    "volta": "Volta cards only; other cards are skipped",
}
_RISKS = {
    "none": "nothing stops",
    "restart": "the service or a GPU starts anew",
    "reconfigure": "files, packages or settings of the host change",
    "rebuild": "code is built anew",
    "reboot": "the host starts anew",
    "hardware": "hands on the machine, or the vendor",
}


@click.command()
@click.argument("check_id", metavar="ID")
@scoped("plugins")
def explain(check_id: str, scope: Scope) -> None:
    """Tell a check's claim, when it complains, why, and what to do.

    ID may also be a cause that only `why` names.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from volta_doctor.catalog import checks, nearest
    from volta_doctor.catalog import why as of_texts
    from volta_doctor.cli.output import show, stdout

    extend(scope)
    rows = of_texts.rows()
    entry = of_texts.diagnoses().get(check_id)
    if check_id not in rows:
        raise click.UsageError(f"no check {check_id!r}{nearest(check_id, rows)}")
    row = rows[check_id]
    hidden_by = [r.id for r in rows.values() if row.id in r.hides]
    blinded_by = [
        f"{r.id} ({', '.join(sorted({*r.blinds} & {*row.needs}))})"
        for r in rows.values()
        if r.id != row.id and {*r.blinds} & {*row.needs}
    ]
    told: dict[str, str] = {
        "claim": row.title,
        "area": row.area,
        "judges": _judges(row) if check_id in checks() else "texts, by volta-doctor why",
        **{str(level): text for level, text in row.rule.items()},
        "unknown": "a fact that it needs could not be had" if row.needs else "",
        "needs": ", ".join(row.needs),
        "uses too": ", ".join(row.uses),
        "in a text": entry.relies if entry else "",
        "fix": row.fix,
        "risk": f"{row.risk}: {_RISKS[row.risk]}",
        "on Volta": row.volta_note,
        "hides": ", ".join(row.hides),
        "hidden by": ", ".join(hidden_by),
        "blinded by": ", ".join(blinded_by),
        "source": row.source,
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, words in told.items():
        if words:
            table.add_row(Text(key, style="bold"), Text(words))
    console = Console(file=stdout("table"), highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(Text(row.id, style="bold"))
        console.print(table)
    show("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _judges(row: "Row") -> str:
    return _GPU[row.gpu] + "; it loads the GPUs, so only with --active" * row.active
