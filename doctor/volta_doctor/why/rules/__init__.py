"""Causes that one message does not show: functions of a whole case, one module a topic.

To add one: a function marked `@rule` in a module here, and its row in catalog/why/.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules

from msgspec import structs

from volta_doctor.catalog import Row
from volta_doctor.findings import Confidence, Finding
from volta_doctor.why.case import Case

Rule = Callable[[Case, Row], Iterable[Finding]]

NO_CARD = "the text does not name the card; on a V100 it is so"
RULES: dict[str, list[Rule]] = {}


def rule(check_id: str) -> Callable[[Rule], Rule]:
    """Mark a function that yields findings of a diagnosis, made with the methods of its row."""

    def register(function: Rule) -> Rule:
        RULES.setdefault(check_id, []).append(function)
        return function

    return register


def load() -> dict[str, list[Rule]]:
    """Import all rules, and return them by diagnosis."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return RULES


def likely(finding: Finding, because: str) -> Finding:
    """Say that a finding is likely, and why it is not certain."""
    return structs.replace(finding, confidence=Confidence.LIKELY, because=because)


def possible(finding: Finding, because: str) -> Finding:
    """Say that a finding is possible, and why it is no more."""
    return structs.replace(finding, confidence=Confidence.POSSIBLE, because=because)


def on_volta(case: Case, finding: Finding) -> Finding:
    """Say that what is so on a Volta card is only likely where the text names no card."""
    return finding if case.card == "volta" else likely(finding, NO_CARD)
