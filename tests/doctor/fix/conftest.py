"""Findings to fix, and the steps that fix them."""

import pytest
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.findings import Step


@pytest.fixture
def risky():
    """Return a finding whose row has another risk."""

    def found(risk, *steps, check_id="iommu", status="warn"):
        row = structs.replace(checks()[check_id], risk=risk)
        return getattr(row, status)("It is bad.", steps=steps)

    return found


@pytest.fixture
def sh():
    """Return a step of the shell."""

    def step(line, back=""):
        return Step(run=["sh", "-c", line], undo=["sh", "-c", back] if back else [])

    return step
