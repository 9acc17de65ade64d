"""Folding, ranking, profiles and the verdict."""

import pytest

from volta_doctor.catalog import checks
from volta_doctor.checks import CHECKS
from volta_doctor.checks.registry import check
from volta_doctor.findings import Status
from volta_doctor.folding import fold, rank
from volta_doctor.judge import examine, judge
from volta_doctor.profile import detect
from volta_doctor.report import exit_code

ROWS = checks()
NO_CARD = {
    "pci": {"devices": []},
    "modules": {"proc_version": None},
    "release": {"manifest": {"profile": "cpu"}},
}


def found(check_id, status="fail", subject="host"):
    return getattr(ROWS[check_id], status)("x", subject=subject)


def parents(*findings):
    return [finding.folded_under for finding in fold(list(findings))]


def test_every_row_has_a_function_and_every_function_a_row():
    assert list(ROWS) != []
    assert set(ROWS) == set(CHECKS)


def test_ids_are_listed_once():
    with pytest.raises(ValueError, match="no such row"):
        check("no-such-check")
    with pytest.raises(ValueError, match="registered twice"):
        check("iommu")


def test_a_check_that_says_nothing_or_breaks_cannot_tell(monkeypatch, snapshot_with):
    facts = snapshot_with({}).facts
    for function, says in ((lambda *_: [], "Nothing is recorded"), (lambda *_: [][0], "failed")):
        monkeypatch.setitem(CHECKS, "iommu", function)
        (finding,) = examine(facts, ROWS["iommu"], detect(facts))
        assert finding.status == Status.UNKNOWN
        assert says in finding.message


def test_a_consequence_is_folded_under_its_cause():
    folded = fold([found("driver-loaded"), found("smi-rc")])
    assert folded[0].hides == ["smi-rc"]
    assert folded[1].folded_under == "driver-loaded"


def test_a_chain_is_folded_under_its_root():
    folded = fold([found("smi-rc"), found("driver-loaded"), found("driver-branch")])
    assert [f.folded_under for f in folded] == ["driver-branch", "driver-branch", None]
    assert folded[2].hides == ["smi-rc", "driver-loaded"]


def test_only_what_was_found_hides_and_nothing_graver_is_hidden():
    assert parents(found("driver-loaded", "unknown"), found("smi-rc")) == [None, None]
    assert parents(found("driver-loaded", "ok"), found("smi-rc")) == [None, None]
    assert parents(found("driver-branch", "warn"), found("driver-loaded")) == [None, None]
    assert parents(found("driver-branch", "warn"), found("smi-rc", "unknown")) == [None, None]
    assert parents(found("driver-loaded"), found("smi-rc", "unknown")) == [None, "driver-loaded"]
    assert parents(found("driver-loaded"), found("smi-rc", "ok")) == [None, None]


def test_subjects_must_be_the_same_or_the_host():
    unit = found("service-ready", subject="volta-serve")
    assert parents(found("driver-loaded"), unit)[1] == "driver-loaded"
    assert parents(found("driver-loaded", subject="GPU-1"), unit) == [None, None]
    assert parents(found("hung-task", subject="pid 7"), found("smi-hang"))[1] == "hung-task"


def test_who_cannot_tell_while_a_check_fails_is_folded_and_who_can_is_not():
    assert parents(found("driver-loaded"), found("driver-branch", "unknown"))[1] == "driver-loaded"
    assert parents(found("driver-loaded"), found("driver-branch"))[1] is None
    lost = found("ecc-mode", "unknown", subject="GPU 3")
    assert parents(found("driver-lib-match"), lost)[1] is None


def test_a_ring_keeps_one_root(monkeypatch):
    from msgspec import structs

    ring = {
        "iommu": structs.replace(ROWS["iommu"], hides=["nouveau"]),
        "nouveau": structs.replace(ROWS["nouveau"], hides=["iommu"]),
    }
    monkeypatch.setattr("volta_doctor.folding.checks", lambda: ring)
    assert parents(found("iommu"), found("nouveau")) == [None, "iommu"]


def test_rank_is_severity_then_root_causes():
    ranked = rank(
        fold(
            [
                found("smi-rc"),
                found("iommu", "warn"),
                found("vbios-mix", "unknown"),
                found("driver-pin", "info"),
                found("nouveau", "ok"),
                found("release-matches-lock"),
                found("driver-loaded"),
            ]
        )
    )
    assert [f.rank for f in ranked] == list(range(1, 8))
    assert [f.id for f in ranked] == [
        "driver-loaded",
        "release-matches-lock",
        "smi-rc",
        "vbios-mix",
        "iommu",
        "driver-pin",
        "nouveau",
    ]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["skip", "skip"], 3),
        (["ok", "info", "skip"], 0),
        (["ok", "warn"], 1),
        (["warn", "unknown"], 3),
        (["warn", "unknown", "fail"], 2),
    ],
)
def test_exit_code(statuses, code):
    assert exit_code([found("iommu", status) for status in statuses]) == code


def test_a_host_without_a_card_is_a_stated_profile(snapshot_with):
    facts = snapshot_with(NO_CARD | {"nvml": "x", "smi": "x", "kernel_log": "x"}).facts
    profile = detect(facts)
    assert profile.name == "cpu"
    findings = judge(facts, ROWS.values(), profile)
    assert {f.status for f in findings if ROWS[f.id].gpu} == {Status.SKIP}
    assert all("looked in /sys/bus/pci/devices" in f.message for f in findings if ROWS[f.id].gpu)
    assert {f.id for f in findings if f.status is Status.OK} >= {
        "repo-key-sha1",
        "release-matches-lock",
        "service-ready",
    }
    assert exit_code(findings) == 0


def test_an_unreadable_bus_is_no_empty_bus(snapshot_with):
    facts = snapshot_with({"pci": "/sys/bus/pci/devices does not exist"}).facts
    profile = detect(facts)
    assert profile.name == "unknown"
    findings = judge(facts, ROWS.values(), profile)
    assert {f.status for f in findings if ROWS[f.id].gpu} == {Status.UNKNOWN}
    assert exit_code(findings) == 3


@pytest.mark.parametrize(
    ("sign", "reason"),
    [
        ({}, "the installed release is for v100"),
        ({"release": "none"}, "the NVIDIA module is loaded"),
    ],
)
def test_a_card_that_fell_off_the_bus_is_missed(snapshot_with, sign, reason):
    none = {"pci": {"devices": []}, "nvml": {"device_count": 0, "gpus": []}}
    facts = snapshot_with(none | sign).facts
    profile = detect(facts)
    assert profile.name == "v100"
    assert f"{reason}, yet no NVIDIA card" in profile.reason
    findings = judge(facts, ROWS.values(), profile)
    assert exit_code(findings) == 2
    assert {f.status for f in findings if f.id == "gpu-count"} <= {Status.FAIL, Status.UNKNOWN}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0x1db1", "v100-sxm2"),
        ("0x1db8", "v100-sxm3"),
        ("0x1df6", "v100-pcie"),
        ("0x1d81", "v100"),
        ("0x1dba", "v100"),
        ("0x1d01", "nvidia"),
        ("0x20b0", "nvidia"),
    ],
)
def test_cards(snapshot_with, device, name):
    facts = snapshot_with(
        {"pci": {"devices": {0: {"device": device}, 1: {"device": device}}}}
    ).facts
    profile = detect(facts)
    assert profile.name == name
    assert profile.reason.startswith("2 x ")
    assert ("the rules are for Volta" in profile.reason) == (name == "nvidia")
    judged = examine(facts, ROWS["driver-branch"], profile)[0].status
    assert judged is (Status.SKIP if name == "nvidia" else Status.OK)


def test_a_forced_profile(snapshot_with):
    bare = snapshot_with(NO_CARD | {"modules": {"proc_version": None}}).facts
    profile = detect(bare, "v100")
    assert (profile.name, profile.forced) == ("v100", True)
    assert examine(bare, ROWS["driver-loaded"], profile)[0].status is Status.FAIL
    assert detect(snapshot_with({}).facts, "cpu").name == "cpu"


def test_a_check_that_breaks_is_unknown(snapshot_with, monkeypatch):
    monkeypatch.setitem(CHECKS, "iommu", lambda _facts, _row: 1 / 0)
    facts = snapshot_with({}).facts
    (finding,) = examine(facts, ROWS["iommu"], detect(facts))
    assert finding.status is Status.UNKNOWN
    assert "ZeroDivisionError" in finding.message


def test_what_is_not_on_the_host_is_skipped_where_there_is_a_card_to_judge(snapshot_with):
    from msgspec import structs

    for sections, status in (({}, Status.SKIP), (NO_CARD, Status.UNKNOWN)):
        facts = snapshot_with(sections).facts
        release = type(facts.release)(ok=False, error="no release is installed", not_here=True)
        facts = structs.replace(facts, release=release)
        (finding,) = examine(facts, ROWS["release-matches-lock"], detect(facts))
        assert (finding.status, finding.message) == (status, "no release is installed")
