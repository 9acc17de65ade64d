"""What the tables of cases do not show: one root for one cause, and the steps of remedies."""

import re

import pytest

from volta_doctor.catalog import checks, xids
from volta_doctor.judge import examine, judge
from volta_doctor.profile import detect

GONE = {"handle_error": {"error": 15, "text": "GPU is lost"}, "uuid": None}
LOG = [
    "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:1b:00): 45, pid=7, name=python, Ch 00000008",
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python, MMU Fault",
]


def test_the_catalogue_s_kinds_of_xid_are_those_of_the_rules():
    def numbers(kind):
        return {number for number, row in xids().items() if row.kind == kind}

    def told(check_id, level):
        return {int(n) for n in re.findall(r"\d+", checks()[check_id].rule[level])}

    assert numbers("fatal") == told("xid-fatal", "fail")
    assert numbers("suspect") == told("xid-fatal", "warn")
    assert numbers("newer") == told("xid-fatal", "info") - {63}
    assert numbers("retired") == told("xid-63", "warn")
    assert numbers("app") == told("xid-app", "warn")
    assert numbers("power") == told("power-cable", "fail") - {8}


@pytest.mark.parametrize("bus_id", [{}, None], ids=["NVML knows its bus id", "PCI knows it"])
def test_a_lost_gpu_has_one_root(snapshot_with, bus_id):
    lines = {n: {"time": 1208.0, "text": text} for n, text in enumerate(LOG, 3)}
    facts = snapshot_with(
        {
            "nvml": {"gpus": {1: GONE | {"pci": bus_id}}},
            "smi": {"exit_code": 15},
            "kernel_log": {"lines": lines},
        }
    ).facts
    rows = [checks()[name] for name in ("gpu-lost", "smi-rc", "xid-app", "xid-fold", "xid-fatal")]
    problems = [f for f in judge(facts, rows, detect(facts)) if f.status not in ("ok", "skip")]
    (root,) = [finding for finding in problems if finding.folded_under is None]
    assert (root.id, root.subject, root.count) == ("xid-fatal", "GPU 1", 1)
    assert {finding.id for finding in problems} == {row.id for row in rows}


def steps(snapshot_with, check_id, facts):
    facts = snapshot_with(facts).facts
    (finding,) = examine(facts, checks()[check_id], detect(facts))
    assert finding.status == "warn"
    return finding.remedy.steps


def pages(count, free, size=2 << 20, default=True):
    return {"page_bytes": size, "count": count, "free": free, "default": default}


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([pages(20_000, 20_000)], 8192),
        ([pages(20_000, 11_808)], 8192),
        # 1 GiB pages are reserved as well
        ([pages(20_000, 20_000), pages(4, 0, 1 << 30, default=False)], 6144),
        # more are in use than may be reserved
        ([pages(20_000, 11_807)], None),
        # the other size alone is too much
        ([pages(10, 10), pages(17, 0, 1 << 30, default=False)], None),
        ([pages(17, 17, 1 << 30, default=False)], None),
    ],
)
def test_huge_pages_are_lowered_as_far_as_they_are_free(snapshot_with, sizes, count):
    found = steps(
        snapshot_with, "hugepages", {"host": {"ram_bytes": 64 << 30, "huge_pages": sizes}}
    )
    if count is None:
        assert found == []
        return
    file, now = found
    assert file.content == f"vm.nr_hugepages = {count}\n"
    assert now.run[-1] == f"vm.nr_hugepages={count}"
    assert now.undo[-1] == "vm.nr_hugepages=20000"


def test_an_mps_directory_is_moved_aside_and_not_removed(snapshot_with):
    (step,) = steps(snapshot_with, "mps", {"host": {"mps_directories": ["/run/mps"]}})
    assert step.run == ["mv", "-T", "/run/mps", "/run/mps.stale"]
    assert step.undo == ["mv", "-T", "/run/mps.stale", "/run/mps"]


def test_device_links_are_made_now_and_at_every_boot(snapshot_with):
    now, later = steps(snapshot_with, "ctk-reload", {"containers": {"unlinked": ["/dev/nvidia0"]}})
    assert now.run[:2] == ["nvidia-ctk", "system"]
    assert later.content.endswith(
        'RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"\n'
    )
    older = {"containers": {"unlinked": ["/dev/nvidia0"], "ctk_path": ""}}
    assert steps(snapshot_with, "ctk-reload", older) == []
