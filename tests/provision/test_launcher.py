"""The launcher's own words; what it does is proved on real hosts, in tests/hosts."""

import subprocess

import pytest


def volta(repo, *arguments):
    command = [repo / "volta", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_help_lists_every_command(repo):
    result = volta(repo, "help")
    assert result.returncode == 0
    for command in ("up", "down", "test", "lint", "bench"):
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize("arguments", [(), ("serve",)])
def test_wrong_usage_is_64(repo, arguments):
    result = volta(repo, *arguments)
    assert result.returncode == 64
    assert "usage: ./volta COMMAND" in result.stderr
    assert result.stdout == ""
