"""Are the GPUs that work together joined by NVLink?"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import gpus, subject
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import (
    groups,
    label,
    named,
    on_volta,
    per_server,
    tensor_parallel,
    told,
)
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts
from volta_doctor.facts.serve import Server
from volta_doctor.facts.topo import UNTOLD, TopoFacts
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several

_FAR = ("NODE", "SYS")
_MOST_RANKS = 16  # as many GPUs as one host holds; the search for a ring grows as 2^n
_CUSTOM_ALL_REDUCE = ("vllm", "1cat-vllm", "sglang")


class Links:
    """The topology by GPU."""

    def __init__(self, topo: TopoFacts) -> None:
        self.source = topo.source
        self._place = {uuid: place for place, uuid in enumerate(topo.uuids)}
        self._links = topo.links

    def shown(self, pairs: Iterable[tuple[GpuFacts, GpuFacts]]) -> list[Evidence]:
        """Show how pairs are joined. Raises Missing as `between` does."""
        return [
            Evidence(self.source, f"{label(a)} - {label(b)}: {self.between(a, b)}")
            for a, b in pairs
        ]

    def between(self, one: GpuFacts, other: GpuFacts) -> str:
        """Return NV#, PIX, PXB, PHB, NODE or SYS. Raises Missing where that is not known."""
        places = [self._place.get(subject(gpu)) for gpu in (one, other)]
        if None in places:
            raise Missing(f"{self.source} does not show {named((one, other))}.")
        link = self._links[places[0]][places[1]]  # type: ignore[index]
        if link == UNTOLD:
            raise Missing(f"{self.source} does not tell how {named((one, other))} are joined.")
        return link

    def joined(self, one: GpuFacts, other: GpuFacts) -> bool:
        """Say whether at least one NVLink joins two GPUs."""
        return self.between(one, other).startswith("NV")

    def unjoined(self, group: Sequence[GpuFacts]) -> list[tuple[GpuFacts, GpuFacts]]:
        """Return the pairs of a group that no NVLink joins."""
        return [pair for pair in combinations(group, 2) if not self.joined(*pair)]

    def any_nvlink(self, group: Sequence[GpuFacts]) -> bool:
        """Say whether an NVLink joins any two of a group."""
        return any(self.joined(*pair) for pair in combinations(group, 2))

    def ring(self, group: Sequence[GpuFacts]) -> bool:
        """Say whether NVLinks form a closed ring through all of a group."""
        if len(group) > _MOST_RANKS:
            raise Missing(f"Rings are looked for among {_MOST_RANKS} ranks, not {len(group)}.")
        return has_ring(
            [
                sum(1 << j for j, other in enumerate(group) if j != i and self.joined(one, other))
                for i, one in enumerate(group)
            ]
        )


def has_ring(neighbours: list[int]) -> bool:
    """Say whether a graph has a cycle through all its nodes; for two, whether they are joined.

    `neighbours` holds a bit mask for each node. For each set of nodes it is kept in which of them
    a path from node 0 through all of the set can end (Bellman, Held and Karp): 2^n steps.
    """
    size = len(neighbours)
    if size <= 2:
        return size < 2 or bool(neighbours[0])
    if any(mask.bit_count() < 2 for mask in neighbours):
        return False
    ends = [0] * (1 << size)
    ends[1] = 1
    for visited in range(1, 1 << size, 2):
        if ends[visited]:
            for node in range(1, size):
                if not visited >> node & 1 and ends[visited] & neighbours[node]:
                    ends[visited | 1 << node] |= 1 << node
    return bool(ends[-1] & neighbours[0])


@check("topo-tp")
def topo_tp(facts: Facts, row: Row) -> Iterator[Finding]:
    """Each layer ends with an all-reduce: the slowest link of the group sets the pace."""
    links = Links(facts.topo.need())

    def judge(server: Server) -> Finding:
        name, width = server.name, tensor_parallel(server)
        if width == 1:
            return row.ok("Its tensor-parallel size is 1.", subject=name)
        if not on_volta(facts, server):
            return row.skip("It uses no Volta card.", subject=name)
        found = groups(facts, server)
        poor = {i: pairs for i, group in enumerate(found) if (pairs := links.unjoined(group))}
        if not poor:
            text = f"NVLink joins every pair of {' and of '.join(map(named, found))}."
            return row.ok(text, told(server), subject=name)
        broken = {i: pairs for i, pairs in poor.items() if not links.ring(found[i])}
        pairs = [pair for pairs in (broken or poor).values() for pair in pairs]
        seen = links.shown(pairs)
        if not broken:
            text = (
                f"NVLinks form a ring through all {width} GPUs, but do not join every two"
                f" ({several(len(pairs), 'pair')} without one)."
            )
            return row.info(text, *seen, subject=name)
        group = found[next(iter(broken))]
        kinds = sorted({links.between(a, b) for a, b in pairs})
        text = (
            f"The tensor-parallel group of {named(group)} has {several(len(pairs), 'pair')} that no"
            f" NVLink joins ({', '.join(kinds)}), and no ring of NVLinks through all of it."
        )
        text += _better(facts, links, width)
        grade = row.fail if any(kind in _FAR for kind in kinds) else row.warn
        return grade(text, *seen, told(server), subject=name)

    return per_server(facts, row, judge)


def _better(facts: Facts, links: Links, width: int) -> str:
    for candidate in combinations(gpus(facts), width):
        try:
            if not links.unjoined(candidate):
                return f" NVLink joins every pair of {named(candidate)}."
        except Missing:
            continue
    return ""


@check("cuda-graph-capture")
def cuda_graph_capture(facts: Facts, row: Row) -> Iterator[Finding]:
    """Without NVLink the engine's own all-reduce can hang while a graph is captured."""
    links = Links(facts.topo.need())

    def judge(server: Server) -> Finding:
        name, flags = server.name, server.flags
        if server.engine not in _CUSTOM_ALL_REDUCE:
            return row.skip(f"{server.engine} has no all-reduce of its own.", subject=name)
        if tensor_parallel(server) == 1:
            return row.ok("Its tensor-parallel size is 1.", subject=name)
        if flags.enforce_eager:
            return row.ok("It captures no CUDA graphs.", told(server), subject=name)
        if flags.disable_custom_all_reduce:
            return row.ok("Its own all-reduce is off.", told(server), subject=name)
        if not on_volta(facts, server):
            return row.skip("It uses no Volta card.", subject=name)
        found = groups(facts, server)
        pairs = [pair for group in found for pair in links.unjoined(group)]
        if not pairs:
            return row.ok("NVLink joins every pair of its GPUs.", told(server), subject=name)
        seen = links.shown(pairs)
        text = (
            "It captures CUDA graphs with its own all-reduce, over"
            f" {several(len(pairs), 'pair')} of GPUs that NVLink does not join: it may hang."
        )
        return row.warn(text, *seen, told(server), subject=name)

    return per_server(facts, row, judge)


@check("p2p-status")
def p2p_status(facts: Facts, row: Row) -> Finding:
    """Where the driver refuses peer access, NVLinks lie idle."""
    topo = facts.topo.need()
    pairs = [
        (i, j)
        for i, links in enumerate(topo.links)
        for j, link in enumerate(links)
        if link.startswith("NV")
    ]
    if not pairs:
        unseen = any(UNTOLD in links for links in topo.links)
        if unseen:
            return row.unknown(f"{topo.source} does not tell how all GPUs are joined.")
        return row.skip("No NVLink joins two GPUs of this host.")
    if topo.p2p is None:
        return row.unknown(f"Peer access cannot be read: {topo.p2p_problem.rstrip('.')}.")
    states = {(i, j): topo.p2p[i][j] for i, j in pairs}
    seen = [
        Evidence(topo.source, f"GPU {i} to GPU {j}: {topo.links[i][j]}, peer access {state}")
        for (i, j), state in states.items()
        if state != "OK"
    ]
    if refused := [pair for pair, state in states.items() if state not in ("OK", UNTOLD)]:
        codes = ", ".join(sorted({states[pair] for pair in refused}))
        text = f"The driver refuses peer access in {len(refused)} of {len(pairs)} directions"
        text = f"{text} between GPUs that NVLink joins ({codes})."
        return row.fail(text, *seen)
    if seen:
        reason = topo.p2p_problem or "NVML does not tell"
        text = (
            f"Peer access is not known in {len(seen)} of {len(pairs)} directions between GPUs that"
            f" NVLink joins: {reason}."
        )
        return row.unknown(text, *seen)
    return row.ok(
        f"Peer access works in all {len(pairs)} directions between GPUs that NVLink joins."
    )
