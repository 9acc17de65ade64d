"""volta-stack as a user calls it."""

import os
import stat
import subprocess
import sys

import pytest
import yaml


def volta_stack(*arguments):
    command = [sys.executable, "-c", "from volta_provision.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_lock_goes_to_standard_output(repo):
    result = volta_stack("lock", "--stack", str(repo / "stack.yaml"), "--profile", "v100")
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(result.stdout)["profile"] == "v100"


def test_a_device_gets_the_lock_and_stays_one(repo, tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root makes a device")
    result = volta_stack(
        "lock", "--stack", str(repo / "stack.yaml"), "--profile", "v100", "-o", str(device)
    )
    assert result.returncode == 0, result.stderr
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_bad_stack_is_one_sentence_and_exit_1(tmp_path):
    (tmp_path / "stack.yaml").write_text("modle: x\n")
    result = volta_stack("lock", "--stack", str(tmp_path / "stack.yaml"), "--profile", "cpu")
    assert result.returncode == 1
    assert "did you mean 'model'" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_wrong_usage_is_64(repo):
    assert volta_stack("lock", "--profile", "a100").returncode == 64
    undecided = volta_stack("lock", "--stack", str(repo / "stack.yaml"))
    assert undecided.returncode == 64
    assert "--profile cpu" in undecided.stderr
