"""Which device code a card runs: the rules as a table."""

from itertools import pairwise

import pytest

from volta_doctor.arch.rules import Card, judge
from volta_doctor.catalog import compat
from volta_doctor.facts.fatbin import DeviceCode

R580 = "580.95.05"


def card(capability):
    return Card(name="a card", capability=capability, known_by="the test")


def code(text):
    """`70 80 +60` is machine code for two and PTX for one."""
    words = text.split()
    return DeviceCode(
        sass={w: 1 for w in words if not w.startswith("+")},
        ptx={w[1:]: 1 for w in words if w.startswith("+")},
    )


@pytest.mark.parametrize(
    ("capability", "carries", "status"),
    [
        ("7.0", "70", "runs"),
        ("7.0", "60 70 75", "runs"),
        ("7.5", "70", "runs"),  # same major, older minor
        ("7.0", "75", "cannot run"),
        ("7.0", "72", "cannot run"),
        ("7.0", "60", "cannot run"),  # another major
        ("8.0", "70", "cannot run"),
        ("8.9", "80 +90", "runs"),
        ("7.0", "75 +70", "runs after JIT"),
        ("7.0", "75 +60", "runs after JIT"),
        ("7.0", "+75", "cannot run"),
        ("9.0", "+70", "runs after JIT"),
        ("9.0", "90a", "runs"),
        ("10.0", "90a +90a", "cannot run"),  # one chip
        ("9.0", "+90a", "runs after JIT"),
        ("10.3", "100f", "runs"),  # one family
        ("10.3", "100a", "cannot run"),
        ("12.0", "100f +100f", "cannot run"),
        ("10.0", "103f", "cannot run"),
        ("12.1", "120f", "runs"),
    ],
)
def test_architectures(capability, carries, status):
    isa = dict.fromkeys(code(carries).ptx, "8.7")
    assert judge(code(carries), isa, card(capability), "590.48.01").status == status


@pytest.mark.parametrize(
    ("isa", "driver", "status", "reason"),
    [
        ("8.7", "570.86.15", "runs after JIT", "ISA 8.7, which the driver compiles"),
        ("8.7", "565.57.01", "cannot run", "needs a driver from 570 on; this is 565.57.01"),
        ("8.8", "570.86.15", "cannot run", "needs a driver from 575 on"),
        ("8.8", R580, "runs after JIT", "ISA 8.8"),
        ("9.0", R580, "runs after JIT", "ISA 9.0"),
        ("9.1", R580, "cannot run", "needs a driver from 590 on"),
        ("9.9", R580, "cannot run", "needs a driver from 591 on"),  # newer than the table
        ("9.9", "999.10", "not known", "driver 999.10 may read it"),
        ("5.0", "384.81", "runs after JIT", "ISA 5.0"),  # older than the table
        ("8.7", None, "runs after JIT", "needs a driver from 570 on"),
        ("9.9", None, "not known", "ISA 9.9"),
        (None, R580, "not known", "does not tell"),
        (None, None, "runs after JIT", "which the driver compiles"),
    ],
)
def test_ptx_and_drivers(isa, driver, status, reason):
    known = {"60": isa} if isa else {}
    verdict = judge(code("80 +60"), known, card("7.0"), driver)
    assert verdict.status == status
    assert reason in verdict.reason


def test_of_two_pieces_of_ptx_one_is_enough():
    verdict = judge(code("+60 +70"), {"60": "9.1", "70": "7.8"}, card("7.0"), R580)
    assert verdict.status == "runs after JIT"


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (DeviceCode(sass={"75": 1}, problem="is cut short"), "not known"),
        (DeviceCode(sass={"70": 1}, problem="is cut short"), "runs"),
        (DeviceCode(), "not known"),
    ],
)
def test_code_that_could_not_be_read(found, status):
    verdict = judge(found, {}, card("7.0"), R580)
    assert verdict.status == status
    assert status == "runs" or ("it is cut short" if found.problem else "no device code") in (
        verdict.reason
    )


def test_the_tables_of_cuda_agree():
    rows = compat().cuda_releases.rows
    for older, newer in pairwise(rows):
        for key in ("cuda", "ptx"):
            a, b = (tuple(map(int, getattr(r, key).split("."))) for r in (older, newer))
            assert a < b, (older, newer)
        assert older.driver < newer.driver
    for major, driver in compat().cuda_majors.least_driver.items():
        first = next(row for row in rows if row.cuda == f"{major}.0")
        assert first.driver == driver
    last = compat().toolkit.last
    assert next(row for row in rows if row.cuda == last).driver <= compat().driver.last_branch
