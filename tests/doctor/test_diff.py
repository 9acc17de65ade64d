"""What changed between two snapshots: no noise, every change once, in words."""

import json

import pytest
from msgspec import structs

from volta_doctor import diff
from volta_doctor.catalog import checks
from volta_doctor.diff import changes, turns
from volta_doctor.facts.model import Facts, encode
from volta_doctor.judge import judge
from volta_doctor.profile import detect

ROWS = checks()


@pytest.fixture
def said(snapshot_with):
    """Return the texts of what changed from the healthy host to a changed one."""

    def say(new, old=None):
        found = changes(snapshot_with(old or {}).facts, snapshot_with(new).facts)
        return [f"{change.section}: {change.text}" for change in found]

    return say


NOISE = {
    "host": {"time": 1796050000},
    "nvml": {
        "gpus": {
            0: {
                "temperature": {"gpu": 70},
                "utilization": {"gpu": 99},
                "memory": {"free": 7},
                "power": {"draw_mw": 250_000},
                "clocks": {"sm": 135},
                "pcie": {"generation": 1},
                "performance_state": 8,
            }
        }
    },
    "kernel_log": {"lines": {3: {"time": 99.0, "text": "NVRM: something"}}},
    "service": {"health": {"seconds": 1.0}, "unit_state": {"uptime_s": 40_000.0, "main_pid": 7}},
    "serve": {"servers": {0: {"pids": [7]}}},
}


def test_what_always_differs_is_left_out(said):
    assert said(NOISE) == []


@pytest.mark.parametrize(
    ("new", "texts"),
    [
        ({"host": {"kernel": "6.1.0-41"}}, ["host: kernel 6.1.0-40-amd64 -> 6.1.0-41"]),
        (
            {"host": {"boot_time": 1796000060}},
            ["host: booted at 2026-11-30 00:53:20+00:00 -> 2026-11-30 00:54:20+00:00"],
        ),
        ({"nvml": {"driver_version": "550.1"}}, ["nvml: driver version 580.95.05 -> 550.1"]),
        (
            {"nvml": {"gpus": {1: {"ecc": {"pending": False}}}}},
            [
                "nvml: GPU GPU-00000001-0000-0000-0000-000000000000: ecc mode at the next boot"
                " on -> off"
            ],
        ),
        (
            {"nvml": {"gpus": {1: {"vbios": {"error": 15, "text": "GPU is lost"}}}}},
            ["-> error 15 (GPU is lost)"],
        ),
        (
            {"packages": {"installed": {0: {"version": "550.1-1"}}}},
            ["packages: package libcuda1: version 580.95.05-1 -> 550.1-1"],
        ),
        (
            {"packages": {"installed": {0: {"name": "libcuda2"}}}},
            ["package libcuda1: removed (580.95.05-1)", "package libcuda2: added (580.95.05-1)"],
        ),
        ({"modules": {"loaded": ["nvidia"]}}, ["loaded: nvidia_uvm: removed", "nvidia_modeset"]),
        ({"smi": "no answer"}, ["smi: could be read, and now cannot: no answer"]),
        (
            {"serve": {"servers": {0: {"flags": {"max_model_len": None}}}}},
            ["serve: server volta-serve.service: flags max model len 2048 -> none"],
        ),
    ],
)
def test_a_change_is_told_in_words(said, new, texts):
    found = said(new)
    assert len(found) == len(texts), found
    for text, part in zip(found, texts, strict=True):
        assert part in text


def test_a_limit_has_its_unit_and_a_counter_its_rise(said):
    before = {
        "nvml": {
            "gpus": {
                0: {
                    "power": {"limit_mw": 300_000},
                    "pcie": {"replays": 4},
                    "retired_pages": {"single_bit": []},
                }
            }
        }
    }
    after = {
        "nvml": {
            "gpus": {
                0: {
                    "power": {"limit_mw": 250_000},
                    "pcie": {"replays": 9},
                    "retired_pages": {"single_bit": [{"address": 1}]},
                }
            }
        }
    }
    name = "nvml: GPU GPU-00000000-0000-0000-0000-000000000000"
    assert said(after, before) == [
        f"{name}: pcie replays rose by 5 (4 -> 9)",
        f"{name}: retired pages single bit rose by 1 (0 -> 1)",
        f"{name}: power limit 300 W -> 250 W",
    ]
    assert f"{name}: pcie replays began anew (9 -> 4)" in said(before, after)


def test_a_lost_gpu_is_one_line(snapshot_with):
    whole = snapshot_with({}).facts
    nvml = structs.replace(whole.nvml.data, gpus=whole.nvml.data.gpus[:1])
    less = structs.replace(whole, nvml=structs.replace(whole.nvml, data=nvml))
    assert [c.text for c in changes(whole, less)] == [
        "GPU GPU-00000001-0000-0000-0000-000000000000: removed"
    ]
    assert [c.kind for c in changes(less, whole)] == ["added"]


def test_a_gpu_that_cannot_be_opened_is_told_by_its_number_and_why(said):
    lost = {"index": 1, "handle_error": {"error": 15, "text": "GPU is lost"}}
    texts = said({"nvml": {"gpus": {1: {"uuid": None, **lost}}}})
    assert "nvml: GPU 1: added, but cannot be opened: error 15 (GPU is lost)" in texts


def test_links_are_told_by_pairs_once_and_only_where_both_are_known(said):
    matrix = {"links": [["X", "NV2"], ["NV2", "X"]], "p2p": [["X", "?"], ["?", "X"]]}
    assert said({"topo": matrix | {"cpus": ["0-7", None]}}) == [
        "topo: links of GPUs 0 and 1 NV6 -> NV2",
        "topo: cpus of GPU 0 0-19,40-59 -> 0-7",
    ]


def test_a_section_that_one_side_never_had_is_no_change(snapshot_with):
    facts = snapshot_with({}).facts
    assert changes(Facts(host=facts.host), facts) == []


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("ok", "fail", "new"),
        (None, "warn", "new"),
        ("warn", "fail", "worse"),
        ("warn", "unknown", "worse"),
        ("fail", "warn", "better"),
        ("fail", "ok", "mended"),
        ("fail", None, "gone"),
        ("ok", "skip", None),
        ("ok", "ok", None),
        ("fail", "fail", None),
        (None, "ok", None),
    ],
)
def test_how_findings_turn(old, new, kind):
    def found(status):
        return [getattr(ROWS["iommu"], status)("m")] if status else []

    assert [turn.kind for turn in turns(found(old), found(new))] == ([kind] if kind else [])


def test_the_table_names_what_there_is(fact_fields):
    known = {f"{base.__name__}.{f}" for struct, f in fact_fields for base in struct.__mro__}
    known |= {struct.__name__ for struct, _ in fact_fields}
    table = diff.table()
    keys = {f"{struct}.{field}" for struct, fields in table.keys.items() for field in fields}
    units = {name for name in table.units if "." in name}
    named = table.noise | table.counters | table.per_gpu | set(table.names) | keys | units
    assert not named - known


def test_the_command(doctor, tmp_path, snapshot_with):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_bytes(encode(snapshot_with({})))
    worse = {"host": {"cmdline": "intel_iommu=on"}, "nvml": {"driver_version": "550.1"}}
    new.write_bytes(encode(snapshot_with(worse)))
    select = ("--select", "iommu,driver-branch")
    done = doctor("diff", str(old), str(new), *select)
    assert (done.returncode, done.stderr) == (1, "")
    assert "nvml:\n  driver version 580.95.05 -> 550.1" in done.stdout
    assert "findings, new:\n  iommu: ok -> warn:" in done.stdout
    assert done.stdout.endswith("warnings (before: healthy)\n")
    back = doctor("diff", str(new), str(old), *select, "--format", "json")
    told = json.loads(back.stdout)
    assert back.returncode == 0
    assert ("mended", "iommu") in [(turn["kind"], turn["id"]) for turn in told["findings"]]
    assert told["new"]["summary"]["verdict"] == "healthy"
    assert {c["section"] for c in told["changes"]} == {"host", "nvml"}
    same = doctor("diff", str(old), str(old), *select)
    assert "Nothing changed." in same.stdout
    gone = tmp_path / "gone.json"
    gone.write_bytes(encode(snapshot_with({"nvml": {"init_error": {"error": 9, "text": "x"}}})))
    without = doctor("diff", str(old), str(gone), "--select", "driver-loaded,ecc-mode,persistence")
    assert "  driver-loaded: ok -> fail:" in without.stdout
    assert "  and 2 more, explained by driver-loaded\n" in without.stdout
    assert "\n  ecc-mode" not in without.stdout
    assert doctor("diff", str(old), "/dev/null").returncode == 64
    assert doctor("diff", "-", "-").returncode == 64


def test_what_a_faulty_host_says_is_what_its_snapshots_say(snapshot_with):
    old, new = snapshot_with({}), snapshot_with({"smi": {"exit_code": 8}})
    before, after = (judge(side.facts, [ROWS["smi-rc"]], detect(side.facts)) for side in (old, new))
    (turn,) = turns(before, after)
    assert turn.text.startswith("smi-rc: ok -> fail: ")
