"""Where the checks of a checkpoint register themselves."""

from collections.abc import Callable, Iterable

from volta_doctor.catalog import Row
from volta_doctor.catalog.model import model_checks
from volta_doctor.findings import Finding
from volta_doctor.preflight.subject import Subject

ModelCheck = Callable[[Subject, Row], Finding | Iterable[Finding]]

MODEL_CHECKS: dict[str, ModelCheck] = {}


def model_check(check_id: str) -> Callable[[ModelCheck], ModelCheck]:
    """Register the function that judges a row of catalog/model/, by its id.

    It is pure: the subject and the row in, one finding or one for each thing out. A fact that it
    cannot do without raises Missing (facts.model), whose text becomes the verdict unknown. Raises
    ValueError for an id without a row, and for one that has a function.
    """
    if check_id not in model_checks():
        raise ValueError(f"check {check_id}: no such row in catalog/model/")
    if check_id in MODEL_CHECKS:
        raise ValueError(f"check {check_id}: registered twice")

    def register(function: ModelCheck) -> ModelCheck:
        MODEL_CHECKS[check_id] = function
        return function

    return register
