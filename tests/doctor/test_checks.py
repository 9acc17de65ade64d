"""Every check by its table of cases: tests/data/doctor/checks/<id>.yaml."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.checks import CHECKS
from volta_doctor.facts.expect import Expect
from volta_doctor.facts.model import Facts, absent
from volta_doctor.judge import examine, sections_of
from volta_doctor.profile import detect

CASES = Path(__file__).parents[1] / "data/doctor/checks"
# What each check must be seen to do, each in a snapshot at least.
SHOWS = {"pass": {"ok"}, "find": {"fail", "warn", "info"}, "cannot tell": {"unknown"}}


@cache
def cases(check_id: str) -> list[dict]:
    """A case: changed facts, and the status of each finding (one alone needs no list).

    `expect` is what the profile says of such a host.
    """
    path = CASES / f"{check_id}.yaml"
    found = yaml.safe_load(path.read_text()) if path.exists() else []
    for case in found:
        case["is"] = case["is"] if isinstance(case["is"], list) else [case["is"]]
    return found


@pytest.mark.parametrize(
    ("check_id", "case"),
    [
        pytest.param(check_id, case, id=f"{check_id}: {case['case']}")
        for check_id in CHECKS
        for case in cases(check_id)
    ],
)
def test_case(check_id, case, snapshot_with):
    facts = snapshot_with(case["facts"]).facts
    expect = Expect(**case["expect"]) if "expect" in case else None
    findings = examine(structs.replace(facts, expect=expect), checks()[check_id], detect(facts))
    assert [finding.status.value for finding in findings] == case["is"], findings
    said = " | ".join(finding.message for finding in findings)
    assert re.search(re.escape(case.get("says", "")), said)
    subjects = [finding.subject for finding in findings]
    assert len(set(subjects)) == len(subjects)


@pytest.mark.parametrize("check_id", CHECKS)
def test_every_level_of_the_rule_has_a_case(check_id):
    seen = {status for case in cases(check_id) for status in case["is"]}
    assert seen >= {*checks()[check_id].rule, "unknown"}


def test_every_check_has_snapshots_that_show_what_it_does(tell):
    """Counted, and told at the end of the run."""
    total = sum(len(cases(check_id)) for check_id in CHECKS)
    told, lacking = [f"doctor: {len(CHECKS)} checks in {total} snapshots"], []
    for what, statuses in SHOWS.items():
        count = {i: sum(not statuses.isdisjoint(case["is"]) for case in cases(i)) for i in CHECKS}
        lacking += [f"{check_id}: none to {what}" for check_id in CHECKS if not count[check_id]]
        told.append(f"{sum(map(bool, count.values()))} {what} (in {sum(count.values())})")
    tell(", ".join(told))
    assert lacking == []


@pytest.mark.parametrize("check_id", CHECKS)
def test_a_need_that_is_not_met_is_unknown_with_the_reason(check_id, snapshot_with):
    row = checks()[check_id]
    for section in row.needs:
        facts = snapshot_with({section: "the disk is on fire"}).facts
        (finding,) = examine(facts, row, detect(facts))
        assert finding.status == "unknown"
        assert "the disk is on fire" in finding.message


@pytest.mark.parametrize("check_id", CHECKS)
def test_a_need_that_no_snapshot_holds_is_never_ok(check_id, snapshot_with):
    facts = snapshot_with({}).facts
    empty = type(facts)(pci=facts.pci)
    row = checks()[check_id]
    (finding,) = examine(empty, row, detect(empty))
    if row.active:
        assert (finding.status, "--active" in finding.message) == ("skip", True)
    else:
        assert (finding.status, "no such section" in finding.message) == ("unknown", True)


@pytest.mark.parametrize("check_id", CHECKS)
def test_a_check_looks_at_no_section_that_its_row_does_not_name(check_id, snapshot_with):
    # --select collects what the row names, and the verdict must not depend on more
    row = checks()[check_id]
    hidden = set(Facts.__struct_fields__) - sections_of([row]) - {"expect"}
    for case in cases(check_id):
        facts = snapshot_with(case["facts"]).facts
        gone = {name: absent() for name in hidden}
        blind = structs.replace(facts, **gone)
        profile = detect(facts)
        assert examine(blind, row, profile) == examine(facts, row, profile), case["case"]


def test_problems_show_evidence(snapshot_with):
    for check_id in CHECKS:
        for case in cases(check_id):
            facts = snapshot_with(case["facts"]).facts
            for finding in examine(facts, checks()[check_id], detect(facts)):
                if finding.status in ("fail", "warn", "info"):
                    assert finding.evidence, (check_id, case["case"])
