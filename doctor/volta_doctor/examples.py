"""Writes what the doctor answers today into the examples of a page of docs/."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_WIDTH = "92"
_FILE = re.compile(r"```\w* title=(\S+)\n(.*?)```\n", re.DOTALL)
_ANSWER = re.compile(r"(```console\n\$ )(volta-doctor .*?)\n(.*?)```\n", re.DOTALL)


def refreshed(page: str) -> str:
    """Return the page with today's answers.

    An example is a block with a title for each file, then one with the command; an example begins
    with a heading.
    """
    return "".join(map(_answered, re.split(r"(?m)^(?=#{2,3} )", page)))


def _answered(section: str) -> str:
    files: dict[str, str] = dict(_FILE.findall(section))
    return _ANSWER.sub(
        lambda match: f"{match[1]}{match[2]}\n{answer(match[2], files)}\n```\n", section
    )


def answer(command: str, files: Mapping[str, str]) -> str:
    """Run a command in a directory that holds the files, and return what it prints."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            path = Path(directory) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        argv = [sys.executable, "-m", "volta_doctor", *shlex.split(command)[1:]]
        done = subprocess.run(
            argv,
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": _WIDTH, "TERM": "dumb"},
        )
    return (done.stdout + done.stderr).rstrip("\n")
