"""What the checks of a GPU share, and the steps of their remedies."""

import pytest

from volta_doctor.catalog import checks
from volta_doctor.findings import Step
from volta_doctor.judge import examine, judge
from volta_doctor.profile import detect

GPU = "GPU-00000000-0000-0000-0000-000000000000"
ON_IT = ["nvidia-smi", "-i", GPU]
CAPPED = {"power": {"limit_mw": 187_500, "enforced_mw": 187_500}}
ROWS = checks()


def first(check_id, snapshot_with, gpu, **sections):
    facts = snapshot_with({"nvml": {"gpus": {0: gpu}}, **sections}).facts
    return examine(facts, ROWS[check_id], detect(facts))[0]


@pytest.mark.parametrize(
    ("check_id", "gpu", "run", "undo"),
    [
        ("power-limit", CAPPED, ["-pl", "300"], ["-pl", "187.5"]),
        ("app-clocks", {"application_clocks": {"graphics": 1290}}, "-ac 877,1530", "-ac 877,1290"),
        ("compute-mode", {"compute_mode": "prohibited"}, ["-c", "0"], ["-c", "2"]),
        ("compute-mode", {"compute_mode": "exclusive_process"}, ["-c", "0"], ["-c", "3"]),
    ],
)
def test_a_setting_is_put_right_by_one_command_and_back_by_another(
    check_id, gpu, run, undo, snapshot_with
):
    run, undo = (part.split() if isinstance(part, str) else part for part in (run, undo))
    (step,) = first(check_id, snapshot_with, gpu).remedy.steps
    assert step == Step(run=[*ON_IT, *run], undo=[*ON_IT, *undo])
    in_container = {"host": {"container": "docker"}}
    assert first(check_id, snapshot_with, gpu, **in_container).remedy.steps == []


def test_persistence_is_the_daemon_s_work(snapshot_with):
    without, off = {"processes": {"tools": []}}, {"persistence": False}
    (step,) = first("persistence", snapshot_with, off, **without).remedy.steps
    assert step.run == ["systemctl", "enable", "--now", "nvidia-persistenced"]
    assert step.undo == ["systemctl", "disable", "--now", "nvidia-persistenced"]
    assert first("persistence", snapshot_with, off).remedy.steps == []


def test_a_cap_that_nvidia_smi_did_not_set_has_no_step(snapshot_with):
    capped = {"power": {"enforced_mw": 200_000}}
    assert first("power-limit", snapshot_with, capped).remedy.steps == []


def test_what_a_lost_gpu_hides_is_folded_under_its_loss(snapshot_with):
    gone = {"uuid": None, "handle_error": {"error": 15, "text": "GPU is lost"}}
    facts = snapshot_with({"nvml": {"gpus": {1: gone}}}).facts
    rows = [row for row in ROWS.values() if row.area in ("memory", "nvlink", "thermal", "pcie")]
    rows = [row for row in rows if not row.active]
    findings = judge(facts, rows, detect(facts))
    of_lost = [f for f in findings if f.subject == "GPU 1" and f.id != "gpu-lost"]
    assert len(of_lost) > 10
    assert {finding.folded_under for finding in of_lost} == {"gpu-lost"}


def test_a_waiver_can_see_that_a_count_has_grown(snapshot_with):
    gpu = {"ecc": {"aggregate_uncorrected": 3}, "retired_pages": {"double_bit": [{}] * 20}}
    assert first("ecc-dbe-agg", snapshot_with, gpu).count == 3
    assert first("retired-total", snapshot_with, gpu).count == 20
