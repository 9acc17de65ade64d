"""Where check functions register themselves."""

from collections.abc import Callable, Iterable

from volta_doctor.catalog import Row, add, checks
from volta_doctor.facts.model import Facts
from volta_doctor.findings import Finding

CheckFunction = Callable[[Facts, Row], Finding | Iterable[Finding]]

CHECKS: dict[str, CheckFunction] = {}


def check(which: str | Row) -> Callable[[CheckFunction], CheckFunction]:
    """Register the function that judges a row: one of the catalogue by its id, or a site's own.

    The function is pure: facts and the row in, one finding or one for each subject out. It may
    rely on the sections that the row needs; for any other fact that it cannot do without it calls
    `need()`, whose Missing becomes the verdict unknown.

    Raises ValueError for an id that the catalogue does not list or that has a function already,
    and for a site's row that is not sound.
    """
    if isinstance(which, Row):
        add(which)
    check_id = which.id if isinstance(which, Row) else which
    if check_id not in checks():
        raise ValueError(f"check {check_id}: no such row in checks.yaml")
    if check_id in CHECKS:
        raise ValueError(f"check {check_id}: registered twice")

    def register(function: CheckFunction) -> CheckFunction:
        CHECKS[check_id] = function
        return function

    return register
