"""The history: what a run leaves for the next one."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from volta_doctor.facts import history
from volta_doctor.facts.history import OF_ROOT, Sample, thin
from volta_doctor.probe import CannotLook

GPU = "GPU-00000000-0000-0000-0000-000000000000"
NOW = 1_796_040_000
DAY = 86_400


def samples_at(*times):
    return [Sample(time=time, gpus={}) for time in times]


def later(snapshot, seconds):
    """The same host some seconds later."""
    host = structs.replace(snapshot.facts.host.data, time=NOW + seconds)
    section = structs.replace(snapshot.facts.host, data=host)
    return structs.replace(snapshot, facts=structs.replace(snapshot.facts, host=section))


def test_a_run_finds_what_the_runs_before_it_counted(host, snapshot_with):
    probe = host()
    links = {2: {"replays": 3, "recoveries": 1, "crc_flit": 4, "crc_data": 5}}
    pages = {"double_bit": [{"address": 1}, {"address": 2}]}
    gpu = {"ecc": {"volatile_corrected": 7}, "pcie": {"replays": 9}, "retired_pages": pages}
    first = snapshot_with({"nvml": {"gpus": {0: {**gpu, "event_reasons": 8, "nvlinks": links}}}})
    assert history.remember(probe, first) is None
    assert history.remember(probe, later(snapshot_with({}), 60)) is None
    before, now = history.collect(probe).samples
    assert (before.time, now.time) == (NOW, NOW + 60)
    counted = before.gpus[GPU]
    assert (counted.ecc_corrected, counted.pcie_replays, counted.event_reasons) == (7, 9, 8)
    assert (counted.retired_double_bit, len(counted.nvlinks)) == (2, 6)
    link = counted.nvlinks[2]
    assert (link.replays, link.recoveries, link.crc) == (3, 1, 9)
    assert now.gpus[GPU].nvlinks[2].crc == 0


def test_what_nvml_did_not_tell_is_no_zero(host, snapshot_with):
    probe, error = host(), {"error": 999, "text": "Unknown Error"}
    gpu = {"ecc": {"volatile_corrected": error}, "pcie": None, "retired_pages": None}
    links = {0: {"replays": error, "crc_flit": error}, 1: {"crc_flit": error, "crc_data": error}}
    facts = {"nvml": {"gpus": {0: {**gpu, "event_reasons": None, "nvlinks": links}}}}
    history.remember(probe, snapshot_with(facts))
    read = history.collect(probe).samples[0].gpus[GPU]
    assert (read.ecc_corrected, read.pcie_replays, read.retired_double_bit) == (None, None, None)
    assert read.event_reasons is None
    assert [read.nvlinks[0].replays, read.nvlinks[0].crc, read.nvlinks[1].crc] == [None, 0, None]


def test_without_a_state_file_there_is_no_sample(host):
    assert history.collect(host()).samples == []


@pytest.mark.parametrize(
    ("env", "file"),
    [
        ({"XDG_STATE_HOME": "/srv/state", "HOME": "/home/ann"}, "/srv/state/volta-doctor"),
        ({"XDG_STATE_HOME": "state", "HOME": "/home/ann"}, "/home/ann/.local/state/volta-doctor"),
        ({"HOME": "/home/ann"}, "/home/ann/.local/state/volta-doctor"),
    ],
)
def test_a_user_has_a_history_of_their_own(host, snapshot_with, env, file):
    probe = host(is_root=False, env=env)
    history.remember(probe, snapshot_with({}))
    assert probe.path(f"{file}/history.json").is_file()
    assert len(history.collect(probe).samples) == 1


def test_without_a_home_nothing_is_kept_and_the_reason_said(host, snapshot_with):
    probe = host(is_root=False, env={"HOME": ""})
    assert "neither XDG_STATE_HOME nor HOME" in history.remember(probe, snapshot_with({}))
    assert history.collect(probe).samples == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"schema": 1, "samples": [{"time": "noon", "gpus": {}}]}',
        b'{"some": "other tool"}',
        b'{"schema": 2, "samples": []}',
    ],
)
def test_a_file_that_is_no_history_is_told_and_kept_aside(host, snapshot_with, content):
    probe = host(files={OF_ROOT: content})
    with pytest.raises(CannotLook, match=OF_ROOT):
        history.collect(probe)
    assert history.remember(probe, snapshot_with({})) is None
    assert len(history.collect(probe).samples) == 1
    assert probe.path(f"{OF_ROOT}.bad").read_bytes() == content


def test_a_place_that_cannot_be_written_is_no_error(host, snapshot_with):
    probe = host(files={"/var/lib/volta-doctor": "a file where a directory should be"})
    assert "/var/lib/volta-doctor" in history.remember(probe, snapshot_with({}))


def test_a_disk_that_fills_up_leaves_the_old_history(host, snapshot_with, monkeypatch):
    probe = host()
    history.remember(probe, snapshot_with({}))

    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    reason = history.remember(probe, later(snapshot_with({}), 60))
    assert reason == f"{OF_ROOT}: No space left on device"
    assert [sample.time for sample in history.collect(probe).samples] == [NOW]
    assert [path.name for path in probe.path(OF_ROOT).parent.iterdir()] == ["history.json"]


@pytest.mark.parametrize(
    "facts",
    [
        {"nvml": "no library"},
        {"nvml": {"gpus": []}},
        {"nvml": {"gpus": [{"index": 0, "handle_error": {"error": 15, "text": "GPU is lost"}}]}},
        {"host": {"time": 0}},
    ],
)
def test_a_run_that_counted_nothing_leaves_no_trace(host, snapshot_with, facts):
    probe = host()
    assert history.remember(probe, snapshot_with(facts)) is None
    assert not probe.path(OF_ROOT).parent.exists()
    with pytest.raises(CannotLook, match="holds no counters"):
        history.from_snapshot(snapshot_with(facts))


def test_an_older_snapshot_is_an_earlier_sample(snapshot_with):
    old = snapshot_with({"nvml": {"gpus": {0: {"pcie": {"replays": 4}}}}})
    (sample,) = history.from_snapshot(old).samples
    assert (sample.time, sample.gpus[GPU].pcie_replays) == (NOW, 4)


def test_the_older_samples_get_the_fewer_they_are():
    every_minute = samples_at(*range(NOW - 40 * DAY, NOW + 1, 60))
    ages = [(NOW - sample.time) for sample in thin(every_minute)]
    assert sum(age <= 600 for age in ages) == 11
    assert sum(600 < age <= DAY for age in ages) in (24, 25)
    assert sum(age > DAY for age in ages) in (29, 30, 31)
    assert max(ages) <= 30 * DAY
    assert ages[-1] == 0


def test_runs_in_quick_succession_do_not_push_out_what_they_are_compared_with():
    found = samples_at(NOW - DAY, NOW - 3 * 3600)
    for second in range(300):
        found = thin([*found, *samples_at(NOW + 2 * second)])
    assert [sample.time for sample in found[:3]] == [NOW - DAY, NOW - 3 * 3600, NOW]
    assert len(found) == 62


def test_a_clock_that_went_back_leaves_no_sample_from_the_future():
    assert [s.time for s in thin(samples_at(NOW - 60, NOW + 5, NOW))] == [NOW - 60, NOW]


def test_a_healthy_sample_is_small(host, snapshot_with):
    probe = host()
    history.remember(probe, snapshot_with({}))
    assert probe.path(OF_ROOT).stat().st_size < 300
    assert json.loads(probe.path(OF_ROOT).read_text())["samples"][0]["gpus"][GPU] == {
        "event_reasons": 1,
        "nvlinks": [{}] * 6,
    }
