"""`volta-doctor explain ID`: all that the catalogue knows of a check."""

from typing import TYPE_CHECKING

import click

from volta_doctor.cli.options import Scope, extend, scoped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volta_doctor.catalog import Row
    from volta_doctor.catalog.why import Diagnosis

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

    ID may also be a cause that only `why` names. What judges both hosts and checkpoints is told
    twice.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from volta_doctor.catalog import checks, nearest
    from volta_doctor.catalog import why as of_texts
    from volta_doctor.catalog.model import model_checks
    from volta_doctor.cli.output import show, stdout

    extend(scope)
    rows = of_texts.rows()
    entry = of_texts.diagnoses().get(check_id)
    if check_id not in rows:
        raise click.UsageError(f"no check {check_id!r}{nearest(check_id, rows)}")
    blocks = []
    if check_id in checks():
        blocks.append(_told(rows[check_id], rows.values(), _judges(rows[check_id]), entry))
    if check_id in model_checks():
        row, others = model_checks()[check_id], model_checks().values()
        blocks.append(_told(row, others, "a checkpoint, by volta-doctor model", entry))
    if not blocks:
        blocks.append(_told(rows[check_id], rows.values(), "texts, by volta-doctor why", entry))
    console = Console(file=stdout("table"), highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(Text(check_id, style="bold"))
        for told in blocks:
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for key, words in told.items():
                if words:
                    table.add_row(Text(key, style="bold"), Text(words))
            if told is not blocks[0]:
                console.print()
            console.print(table)
    show("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _told(
    row: "Row", others: "Iterable[Row]", judges: str, entry: "Diagnosis | None"
) -> dict[str, str]:
    """Return what there is to tell of a row among others of its kind, empty where it has none."""
    blinded_by = [
        f"{r.id} ({', '.join(sorted({*r.blinds} & {*row.needs}))})"
        for r in others
        if r.id != row.id and {*r.blinds} & {*row.needs}
    ]
    return {
        "claim": row.title,
        "area": row.area,
        "judges": judges,
        **{str(level): text for level, text in row.rule.items()},
        "unknown": "a fact that it needs could not be had" if row.needs else "",
        "needs": ", ".join(row.needs),
        "uses too": ", ".join(row.uses),
        "in a text": entry.relies if entry else "",
        "fix": row.fix,
        "risk": f"{row.risk}: {_RISKS[row.risk]}",
        "on Volta": row.volta_note,
        "hides": ", ".join(row.hides),
        "hidden by": ", ".join(r.id for r in others if row.id in r.hides),
        "blinded by": ", ".join(blinded_by),
        "source": row.source,
    }


def _judges(row: "Row") -> str:
    return _GPU[row.gpu] + "; it loads the GPUs, so only with --active" * row.active
