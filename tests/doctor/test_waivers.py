"""Waivers: until when they hold, what they cover, and what is said of those that do not."""

from datetime import date

import pytest
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.findings import Status, Waived
from volta_doctor.folding import rank
from volta_doctor.judge import judge
from volta_doctor.profile import detect
from volta_doctor.report import build, exit_code
from volta_doctor.waivers import WaiversError, default_files, load, notes, waive

ROWS = checks()
DAY = date(2026, 11, 30)
ONE = "- {id: iommu, reason: why not, expires: 2026-11-30"


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "waivers.yaml"
        path.write_text(text)
        return load(path, ROWS)

    return write


def warned(subject="host", count=None):
    return ROWS["iommu"].warn("bad", subject=subject, count=count)


@pytest.mark.parametrize(
    ("rest", "finding", "holds", "says"),
    [
        ("}", warned(), True, None),
        (", subject: host}", warned(), True, None),
        (", subject: GPU-1*}", warned("GPU-12"), True, None),
        (", subject: GPU-1*}", warned("GPU-2"), False, "[GPU-1*] matches no finding"),
        (", count: 5}", warned(count=5), True, None),
        (", count: 5}", warned(count=4), True, None),
        (", count: 5}", warned(count=6), False, "a count of 5, which is 6 now on host"),
        (", count: 0}", warned(), False, "a count of 0, which is not counted on host"),
        ("}", ROWS["iommu"].unknown("cannot see"), True, None),
        ("}", ROWS["iommu"].ok("fine"), False, "matches no finding"),
        ("}", ROWS["nouveau"].fail("bad"), False, None),
    ],
)
def test_what_a_waiver_covers(written, rest, finding, holds, says):
    waivers = written(ONE + rest)
    (after,) = waive([finding], waivers, DAY)
    assert (after.waived is not None) == holds
    said = notes([after], waivers, DAY)
    assert len(said) == (says is not None)
    assert not says or says in said[0]


def test_it_holds_through_its_last_day(written):
    waivers = written(ONE + "}")
    assert waive([warned()], waivers, DAY)[0].waived.expires == "2026-11-30"
    after = waive([warned()], waivers, date(2026, 12, 1))
    assert after[0].waived is None
    (note,) = notes(after, waivers, date(2026, 12, 1))
    assert "waivers.yaml, line 1: the waiver of iommu [*] expired on 2026-11-30: why not" in note


def test_a_waived_problem_is_shown_and_does_not_count():
    waived = structs.replace(warned(), waived=Waived(reason="known", expires="2026-11-30"))
    findings = rank([waived, ROWS["nouveau"].info("i"), ROWS["smi-rc"].ok("o")])
    assert [f.id for f in findings] == ["nouveau", "iommu", "smi-rc"]
    assert exit_code(findings) == 0
    assert exit_code([waived]) == 0
    assert exit_code([waived, ROWS["smi-rc"].fail("f")]) == 2


def test_a_waived_cause_hides_nothing(written, snapshot_with):
    no_driver = {"init_error": {"error": 9, "text": "Driver Not Loaded"}, "gpus": []}
    snapshot = snapshot_with({"modules": {"proc_version": None}, "nvml": no_driver})
    profile = detect(snapshot.facts)
    rows = [ROWS["driver-loaded"], ROWS["vbios-mix"]]
    bare = {f.id: f for f in judge(snapshot.facts, rows, profile)}
    assert bare["vbios-mix"].folded_under == "driver-loaded"
    waivers = written("- {id: driver-loaded, reason: r, expires: 2027-01-01}")
    found = judge(snapshot.facts, rows, profile, waivers, DAY)
    assert [(f.id, f.folded_under, bool(f.waived)) for f in found] == [
        ("vbios-mix", None, False),
        ("driver-loaded", None, True),
    ]
    summary = build(snapshot, profile, found).summary
    assert (summary.fail, summary.waived, summary.unknown, summary.exit_code) == (0, 1, 1, 3)
    assert all(f.status is Status.FAIL for f in found if f.waived)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {id: iommu, expires: 2027-01-01}", "line 1: waiver iommu: .*field `reason`"),
        ("- {id: iommu, reason: '', expires: 2027-01-01}", r"length >= 1 - at `\$.reason`"),
        ("\n- {id: iommu, reason: r}", "line 2: waiver iommu: .*field `expires`"),
        ("- {id: iommu, reason: r, expires: soon}", r"at `\$.expires`"),
        ("- {id: iommu, reason: r, expires: 2027-13-01}", "waivers.yaml: month must be"),
        ("- {id: iomu, reason: r, expires: 2027-01-01}", "no check 'iomu'; did you mean iommu"),
        ("- {id: iommu, reason: r, expires: 2027-01-01, until: 1}", "unknown field `until`"),
        ("- {reason: r, expires: 2027-01-01}", "line 1: waiver: .*field `id`"),
        ("- {id: iommu, reason: r, expires: 2027-01-01, at: x}", "unknown field `at`"),
        ("- {id: iommu, reason: r, expires: 2027-01-01, count: -1}", r"at `\$.count`"),
        ("iommu: r", "not a list of waivers"),
        ("- iommu", "Expected `object`"),
        ("- {id: [", "waivers.yaml: while parsing"),
    ],
)
def test_a_bad_file_names_entry_and_field(written, text, says):
    with pytest.raises(WaiversError, match=f"waivers.yaml.*{says}|{says}"):
        written(text)


def test_an_empty_file_waives_nothing(written, tmp_path):
    assert written("# none yet\n") == []
    with pytest.raises(WaiversError, match="No such file"):
        load(tmp_path / "none.yaml", ROWS)


def test_the_users_own_file_is_read_unasked(tmp_path):
    mine = tmp_path / ".config/volta-doctor/waivers.yaml"
    assert mine not in default_files({"HOME": str(tmp_path)})
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert mine in default_files({"HOME": str(tmp_path)})
