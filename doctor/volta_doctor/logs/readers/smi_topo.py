"""The matrices of `nvidia-smi topo -m` and `topo -p2p`."""

import re
from collections.abc import Iterator

from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import GpuFacts, NvmlFacts
from volta_doctor.facts.topo import SELF, UNTOLD, TopoFacts, smi
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Line, Text

_HEADER = re.compile(r"\s*GPU0\s+(?:GPU1|CPU Affinity|NIC0|mlx)")
_ROW = re.compile(r"\s*(?:GPU|NIC|mlx)\w*\s+\S")
_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})


@reader("GPU0", "CPU Affinity")
def topo(text: Text) -> Iterator[Part]:
    """Yield the first matrix of each kind, and that there are these GPUs."""
    links: smi.Matrix | None = None
    peers: smi.Matrix | None = None
    seen: list[Seen] = []
    whole = True
    for lines in _matrices(text):
        bodies = _square([line.body for line in lines])
        whole = whole and len(bodies) == len(lines) and bodies[0] == lines[0].body
        matrix = smi.parse("\n".join(bodies))
        if matrix is None:
            continue
        cells = {cell for row in matrix.cells for cell in row} - {SELF}
        if cells and cells <= _PEER:
            peers = peers or matrix
        else:
            links = links or matrix
        seen += [Seen("topo", _named(line), text.evidence(line)) for line in lines[1:]]
    shown = links or peers
    if shown is None:
        return
    size = len(shown.cells)
    facts = TopoFacts(
        source="nvidia-smi topo",
        uuids=[f"GPU {index}" for index in range(size)],
        links=links.cells if links else [[UNTOLD] * size for _ in range(size)],
        p2p=peers.cells if peers and len(peers.cells) == size else None,
        p2p_problem="" if peers else "the text does not show nvidia-smi topo -p2p",
        cpus=links.cpus if links else [],
        nodes=links.nodes if links else [],
    )
    gpus = NvmlFacts(source="nvidia-smi topo", gpus=[GpuFacts(index=i) for i in range(size)])
    judges = ("topo-tp", "cuda-graph-capture", "nccl-env", "p2p-status")
    yield Part(Facts(topo=section(facts), nvml=section(gpus)), judges if whole else (), seen)


def _square(bodies: list[str]) -> list[str]:
    """Return the rows with as many columns as there are rows, where some were cut off."""
    rows = [body.split() for body in bodies[1:] if body.startswith("GPU")]
    columns = [word for word in bodies[0].split() if re.fullmatch(r"GPU\d+", word)]
    if not 1 < len(rows) < len(columns):
        return bodies
    shown = [word[: len(rows) + 1] for word in rows]
    return ["\t".join(columns[: len(rows)]), *("\t".join(row) for row in shown)]


def _named(line: Line) -> str:
    """Return a row's GPU as findings name it: GPU0 is GPU 0."""
    return re.sub(r"^\s*GPU(\d+).*", r"GPU \1", line.body)


def _matrices(text: Text) -> Iterator[list[Line]]:
    found: list[Line] = []
    for line in text.lines:
        if _HEADER.match(line.body):
            if found:
                yield found
            found = [line]
        elif found and _ROW.match(line.body):
            found.append(line)
        elif found:
            yield found
            found = []
    if found:
        yield found
