"""The `topo` section: how the GPUs are joined, as `nvidia-smi topo` would show it."""

import msgspec

from volta_doctor.probe import CannotLook, Probe

SELF, UNTOLD = "X", "?"
COMMANDS = {
    "links": ("nvidia-smi", "topo", "-m"),
    "p2p": ("nvidia-smi", "topo", "-p2p", "r"),
    "gpus": ("nvidia-smi", "-L"),
}
_COMMAND_S = 3.0  # three of them are to end within the collector's time


class TopoFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Square matrices in the order of NVML's indices, and what `source` they are from.

    `links` holds X on the diagonal, else NV1 to NV6 (so many NVLinks), PIX, PXB, PHB, NODE or SYS;
    ? where the driver did not tell. `p2p` holds OK, or nvidia-smi's code of why a pair has no peer
    access (CNS, GNS, TNS, NS, DR, U); it is None where it could not be had, for `p2p_problem`.
    `cpus` is a kernel list (0-19,40) of the CPUs near a GPU, `nodes` its NUMA node; each None where
    the host does not tell.
    """

    source: str
    uuids: list[str]
    links: list[list[str]]
    p2p: list[list[str]] | None = None
    p2p_problem: str = ""
    cpus: list[str | None] = []
    nodes: list[int | None] = []

    def __post_init__(self) -> None:
        size = len(self.uuids)
        for name, matrix in (("links", self.links), ("p2p", self.p2p)):
            if matrix is not None and [len(row) for row in matrix] != [size] * size:
                raise ValueError(f"{name} must be a square matrix of {size} GPUs")


def collect(_probe: Probe) -> TopoFacts:
    """Ask NVML; what nvidia-smi says in its place is `from_smi`'s."""
    from volta_doctor.facts.topo import nvml  # only a live host needs pynvml

    return nvml.read_host()


def from_smi(probe: Probe) -> TopoFacts:
    """Read what nvidia-smi prints. Raises CannotLook where it does not print the matrix."""
    from volta_doctor.facts.topo import smi

    text = _ask(probe, "links")
    matrix = smi.parse(text)
    if matrix is None:
        raise CannotLook(f"{' '.join(COMMANDS['links'])} shows no matrix: {text.strip()[:200]}")
    p2p, problem = None, ""
    try:
        p2p = smi.parse(_ask(probe, "p2p"))
    except CannotLook as reason:
        problem = str(reason)
    return TopoFacts(
        source=" ".join(COMMANDS["links"]),
        uuids=smi.parse_uuids(_ask(probe, "gpus")),
        links=matrix.cells,
        p2p=p2p.cells if p2p else None,
        p2p_problem=problem if p2p or problem else "nvidia-smi topo -p2p r shows no matrix",
        cpus=matrix.cpus,
        nodes=matrix.nodes,
    )


def _ask(probe: Probe, what: str) -> str:
    done = probe.run(*COMMANDS[what], limit=_COMMAND_S)
    if done.exit_code != 0:
        said = done.stdout.strip() if done.exit_code is not None else ""
        raise CannotLook(f"{' '.join(COMMANDS[what])}: {said or done.complaint}")
    return done.stdout
