"""Consequences under their causes, and which finding comes first: for whatever was judged."""

from collections.abc import Collection, Mapping

from msgspec import structs

from volta_doctor.catalog import Row, checks
from volta_doctor.findings import HOST, PROBLEMS, SEVERITY, Finding, Status

_FOUND = (Status.FAIL, Status.WARN, Status.INFO)


def fold(
    findings: list[Finding],
    bears: Mapping[str, Collection[str]] = {},
    rows: Mapping[str, Row] | None = None,
) -> list[Finding]:
    """Put each consequence under its root cause, as the catalogue's `hides` and `blinds` say.

    `bears` are the subjects that bear on others, and `rows` those of the findings, the checks'
    where none are given. A waived finding hides nothing: its waiver speaks
    of itself alone.
    """
    rows = rows or checks()
    cause: dict[int, int] = {}

    def root(index: int) -> int:
        while index in cause:
            index = cause[index]
        return index

    found = [index for index, finding in enumerate(findings) if finding.status in _FOUND]
    by_id: dict[str, list[int]] = {}
    untold: dict[str, list[int]] = {}  # by subject
    for index, finding in enumerate(findings):
        if finding.status in PROBLEMS:
            by_id.setdefault(finding.id, []).append(index)
        if finding.status is Status.UNKNOWN:
            untold.setdefault(finding.subject, []).append(index)
    for above in found:
        row = rows[findings[above].id]
        hidden = {index for check_id in row.hides for index in by_id.get(check_id, ())}
        if row.blinds:
            own = findings[above].subject
            borne = [child for child, parents in bears.items() if own in parents]
            for name in {own, HOST, *borne}:
                hidden.update(untold.get(name, ()))
        for below in sorted(hidden):
            explained = explains(findings[above], findings[below], bears, rows)
            if explained and below not in cause and root(above) != below:
                cause[below] = above
    hides: dict[int, list[str]] = {}
    for below in cause:
        ids = hides.setdefault(root(below), [])
        if findings[below].id not in ids:
            ids.append(findings[below].id)
    return [
        structs.replace(
            finding,
            hides=hides.get(index, []),
            folded_under=findings[root(index)].id if index in cause else None,
        )
        for index, finding in enumerate(findings)
    ]


def explains(
    parent: Finding,
    child: Finding,
    bears: Mapping[str, Collection[str]] = {},
    rows: Mapping[str, Row] | None = None,
) -> bool:
    """Say whether `child` is to be read as a consequence of `parent`.

    What cannot be told of the whole host may be for one of its parts; but what is wrong with the
    host is not why one part of it alone cannot be read.
    """
    rows = rows or checks()
    row, needs = rows[parent.id], rows[child.id].needs
    bears_on = {child.subject, *bears.get(child.subject, ())}
    near = parent.subject in bears_on or child.subject == HOST
    blinded = child.status is Status.UNKNOWN and not set(row.blinds).isdisjoint(needs) and near
    hidden = child.id in row.hides and (near or parent.subject == HOST)
    return (
        parent.status in _FOUND
        and not parent.waived
        and child.status in PROBLEMS
        and (blinded or hidden)
        and SEVERITY.index(parent.status) <= SEVERITY.index(child.status)
    )


def rank(findings: list[Finding]) -> list[Finding]:
    """Number the findings: severity first, then root causes, those that explain most first.

    Waived problems come behind the others.
    """

    def weight(finding: Finding) -> tuple[float, bool, int]:
        severity = SEVERITY.index(finding.status)
        behind = PROBLEMS.index(Status.INFO) + 0.5 if finding.waived else severity
        return behind, finding.folded_under is not None, -len(finding.hides)

    ordered = sorted(findings, key=weight)
    return [structs.replace(finding, rank=number) for number, finding in enumerate(ordered, 1)]
