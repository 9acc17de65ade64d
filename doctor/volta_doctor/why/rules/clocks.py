"""Clocks that a setting holds down."""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.facts.nvml import value
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import rule

_HELD = "Applications Clocks Setting : Active|applications_clocks_setting>Active"


@rule("app-clocks")
def below_the_highest(case: Case, row: Row) -> Iterator[Finding]:
    """The driver names the setting as its reason, and the clocks beside it differ."""
    nvml, held = case.facts.nvml.data, case.lines(_HELD, 1)
    for gpu in nvml.gpus if nvml and held else []:
        clock, fastest = value(gpu.application_clocks.graphics), value(gpu.clocks_max.graphics)
        if clock and fastest and clock < fastest:
            seen = case.lines(rf"Graphics(?: : |_clock>)(?:{clock}|{fastest}) MHz", 2)
            text = f"The application clock is {clock} MHz, the card's highest {fastest} MHz."
            yield row.info(text, *seen, *held)
