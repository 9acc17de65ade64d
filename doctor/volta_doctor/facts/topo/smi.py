"""What `nvidia-smi topo -m`, `topo -p2p r` and `nvidia-smi -L` print, and have printed before."""

import re
from typing import NamedTuple

_GPU = re.compile(r"GPU\d+")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # on a terminal the header is underlined


class Matrix(NamedTuple):
    """A square of cells between GPUs, and the columns after it where there are any."""

    cells: list[list[str]]
    cpus: list[str | None]
    nodes: list[int | None]


def parse(text: str) -> Matrix | None:
    """Return the matrix between GPUs, None where the text has none.

    Rows and columns of network cards are left out. `NUMA Affinity` came with R450.
    """
    columns: list[str] = []
    cells: list[list[str]] = []
    cpus: list[str | None] = []
    nodes: list[int | None] = []
    for line in _ANSI.sub("", text).splitlines():
        words = line.split()
        if not words:
            if cells:
                break  # the legend follows
        elif not columns and _GPU.fullmatch(words[0]):
            columns = re.findall(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|\S+", line)
        elif columns and _GPU.fullmatch(words[0]):
            # Only tabs show an empty cell; pasted text may have lost them.
            row = [c.strip() for c in line.strip().split("\t")][1:] if "\t" in line else words[1:]
            by_name = dict(zip(columns, row, strict=False))
            cells.append([by_name.get(name, "?") for name in columns if _GPU.fullmatch(name)])
            cpus.append(by_name.get("CPU Affinity") or None)
            node = by_name.get("NUMA Affinity", "")
            nodes.append(int(node) if node.isdigit() else None)
    square = cells and all(len(row) == len(cells) for row in cells)
    return Matrix(cells, cpus, nodes) if square else None


def parse_uuids(text: str) -> list[str]:
    """Return the UUIDs of `nvidia-smi -L`, in order of the index."""
    return re.findall(r"^GPU \d+: .*\(UUID: (GPU-[0-9a-f-]+)\)", text, re.MULTILINE)
