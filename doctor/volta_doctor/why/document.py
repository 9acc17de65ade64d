"""Writes what is derived in docs/why.md: the answers in its examples, and the causes by area."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from volta_doctor.catalog.why import diagnoses, rows

_WIDTH = "92"
_FILE = re.compile(r"```\w* title=(\S+)\n(.*?)```\n", re.DOTALL)
_ANSWER = re.compile(r"(```console\n\$ )(volta-doctor why .*?)\n(.*?)```\n", re.DOTALL)
_CAUSES = re.compile(r"(<!-- causes: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(page: str) -> str:
    """Return the page with the answers that `why` gives now, and the causes it knows now.

    An example is a block with a title for each file, then one with the command; an example begins
    with a heading.
    """
    sections = re.split(r"(?m)^(?=#{2,3} )", page)
    done = "".join(map(_answered, sections))
    return _CAUSES.sub(lambda match: f"{match[1]}\n{causes()}\n{match[2]}", done)


def _answered(section: str) -> str:
    files: dict[str, str] = dict(_FILE.findall(section))
    return _ANSWER.sub(
        lambda match: f"{match[1]}{match[2]}\n{answer(match[2], files)}\n```\n", section
    )


def answer(command: str, files: Mapping[str, str]) -> str:
    """Run a command in a directory that holds the files, and return what it prints."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            (Path(directory) / name).write_text(text)
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


def causes() -> str:
    """Return the causes by area: what a text must show for each, and why that carries over."""
    known, entries = rows(), diagnoses()
    areas = list(dict.fromkeys(known[name].area for name in known if name in entries))
    parts = []
    for area in areas:
        parts.append(f"### {area.capitalize()}\n")
        for name, entry in entries.items():
            if known[name].area == area:
                parts.append(
                    f"- **{name}** ({known[name].title}): {' '.join(entry.relies.split())}"
                )
        parts.append("")
    return "\n".join(parts)
