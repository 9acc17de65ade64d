"""The programs that an nvcc runs, and where it finds them.

nvcc.profile, beside nvcc, puts the directories of its own toolkit before PATH. Debian's toolkit is
taken apart: nvcc and cicc lie in /usr/lib/nvidia-cuda-toolkit/bin, and what lies in /usr/bin is
found by PATH alone, so that another toolkit before it in PATH gets its ptxas run.
"""

import posixpath
from typing import NamedTuple

from volta_doctor.facts.toolchain.cuda_tools import Tool, Tools
from volta_doctor.probe import Probe


class Part(NamedTuple):
    """A program by name, and where it lies in a toolkit, seen from nvcc's directory."""

    name: str
    places: tuple[str, ...]


PARTS = (
    Part("ptxas", ("ptxas",)),
    Part("cicc", ("../nvvm/bin/cicc", "cicc")),
    Part("nvlink", ("nvlink",)),
)


def beside(probe: Probe, tools: Tools, nvcc: Tool, search: list[str]) -> list[Tool]:
    """Return the parts that an nvcc runs: its own toolkit's, else the first in `search`."""
    found = []
    for part in PARTS:
        paths = own(nvcc, part) + [f"{directory}/{part.name}" for directory in search]
        if path := next((path for path in paths if probe.exists(path)), None):
            found.append(tools.read(path))
    return found


def fitting(
    probe: Probe, tools: Tools, nvcc: Tool, wrong: list[Tool], search: list[str]
) -> list[str]:
    """Return the directories of `search` with a part of nvcc's release for each `wrong` one."""
    found: dict[str, None] = {}
    for tool in wrong:
        name = posixpath.basename(tool.path)
        paths = [f"{directory}/{name}" for directory in search]
        for path in filter(probe.exists, paths):
            if tools.read(path).release == nvcc.release:
                found[posixpath.dirname(path)] = None
                break
    return list(found)


def whole(probe: Probe, nvcc: Tool) -> bool:
    """Say whether an nvcc has all its parts in its own toolkit."""
    return all(any(map(probe.exists, own(nvcc, part))) for part in PARTS)


def own(nvcc: Tool, part: Part) -> list[str]:
    """Return where a part lies in an nvcc's own toolkit."""
    directory = posixpath.dirname(nvcc.real)
    return [posixpath.normpath(f"{directory}/{place}") for place in part.places]
