"""The `topo` section: how the GPUs are joined, as `nvidia-smi topo` would show it."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class TopoFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Square matrices in the order of NVML's indices, and what `source` they are from.

    `links` holds X on the diagonal, else NV1 to NV6 (so many NVLinks), PIX, PXB, PHB, NODE or SYS.
    `p2p` holds OK, or nvidia-smi's code of why a pair has no peer access (CNS, GNS, TNS, NS, DR,
    U); it is None where it could not be had, for `p2p_problem`. `cpus` is a kernel list (0-19,40)
    of the CPUs near a GPU, `nodes` its NUMA node; each None where the host does not tell.
    """

    source: str
    uuids: list[str]
    links: list[list[str]]
    p2p: list[list[str]] | None = None
    p2p_problem: str = ""
    cpus: list[str | None] = []
    nodes: list[int | None] = []


def collect(probe: Probe) -> TopoFacts:
    raise CannotLook("not collected yet")
