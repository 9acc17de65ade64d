"""May a server run on the CPUs that are near its GPUs?"""

from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import subject
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import ranks
from volta_doctor.checks.units import drop_in, each_unit, on_gpus, seen
from volta_doctor.facts import cpu_list
from volta_doctor.facts.host.memory import NumaNode
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve import Server
from volta_doctor.facts.topo import TopoFacts
from volta_doctor.facts.units import UnitFacts
from volta_doctor.findings import Finding


def near(topo: TopoFacts, nodes: list[NumaNode], uuid: str) -> set[int] | None:
    """Return the CPUs near a GPU, None where the host does not tell."""
    if uuid not in topo.uuids:
        return None
    index = topo.uuids.index(uuid)
    cpus = topo.cpus[index] if index < len(topo.cpus) else None
    node = topo.nodes[index] if index < len(topo.nodes) else None
    if cpus:
        return cpu_list.parse(cpus)
    return next((cpu_list.parse(known.cpus) for known in nodes if known.node == node), None)


@check("numa")
def numa(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """Every copy to a GPU of another node crosses the link between the processors."""
    topo, nodes = facts.topo.need(), facts.host.need().numa_nodes

    def judge(server: Server, unit: UnitFacts) -> Finding:
        affinity, group = unit.cpu_affinity, unit.allowed_cpus
        if not on_gpus(facts, server):
            return row.skip("It runs on the CPU.", subject=server.name)
        if nodes is None or affinity is None or group is None:
            text = "The host's NUMA nodes or the unit's CPUs are not recorded."
            return row.unknown(text, subject=server.name)
        if len([node for node in nodes if node.cpus]) < 2:
            return row.ok("The host has one NUMA node.", subject=server.name)
        if not affinity and not group:
            return row.ok("It may run on every CPU.", subject=server.name)
        evidence = [
            seen(unit, f"{name}={cpus}")
            for name, cpus in (("CPUAffinity", affinity), ("AllowedCPUs", group))
            if cpus
        ]
        bound = [cpu_list.parse(cpus) for cpus in (affinity, group) if cpus]
        allowed = set.intersection(*bound)
        wanted: dict[str, set[int]] = {}
        for gpu in map(subject, ranks(facts, server)):
            cpus = near(topo, nodes, gpu)
            if not cpus:
                text = f"Which CPUs are near {gpu} is not known."
                return row.unknown(text, *evidence, subject=server.name)
            wanted[gpu] = cpus
        if off := [gpu for gpu, cpus in wanted.items() if not cpus & allowed]:
            good = set[int]().union(*wanted.values())
            text = (
                f"It may run on CPUs {cpu_list.write(allowed)}, none of which is near"
                f" {', '.join(off)}; near its GPUs are {cpu_list.write(good)}."
            )
            lines = ["CPUAffinity=", f"CPUAffinity={cpu_list.write(good)}"]
            # Where the control group is to blame, it may be the one of a slice.
            own = not group or good & cpu_list.parse(group)
            steps = drop_in(row, unit, {"Service": lines}) if own else []
            return row.warn(text, *evidence, subject=server.name, steps=steps)
        return row.ok("It may run near all of its GPUs.", *evidence, subject=server.name)

    return each_unit(facts, row, judge)
