"""A snapshot of a host says what the host itself says, byte for byte but for time."""

import re

import pytest

# How long things took, and when the report was made.
TIMES = re.compile(r'"taken": "[^"]*"|\b\d+\.\d+ s\b')


def timeless(report: str) -> str:
    return TIMES.sub("some time", report)


@pytest.mark.parametrize("name", ["dgx-1", "dgx-2", "v100-pcie-32gb-x2", "ecc-dbe-vol", "gpu-lost"])
def test_live_and_from_its_snapshot(live_host, tmp_path, name):
    host, path = live_host(name), tmp_path / "snapshot.json"
    assert host.doctor("snapshot", "-o", str(path)).returncode == 0
    replayed = host.doctor("check", "--format", "json", "--snapshot", str(path))
    live = host.doctor("check", "--format", "json")
    assert timeless(live.stdout) == timeless(replayed.stdout)
    assert live.returncode == replayed.returncode
    assert (live.stderr, replayed.stderr) == ("", "")


def test_only_findings_about_durations_tell_one(live_host):
    told = {
        check_id
        for check_id, findings in live_host("dgx-1").findings().items()
        if re.search(r"\b\d+\.\d+ s\b", str(findings))
    }
    assert told <= {"smi-hang", "service-ready"}
