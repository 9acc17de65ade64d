"""The edges of the join (edges.yaml): which finding breaks one, and what mends it."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from volta_doctor.arch.model import Target
from volta_doctor.catalog import compat
from volta_doctor.findings import SEVERITY, Finding, Status

# What may be true of all files that cannot run
Trait = Literal["", "newer driver", "nvidia"]

BROKEN = (Status.FAIL, Status.WARN)


class Edge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of edges.yaml, which tells what a key means."""

    check: str
    edge: str
    change: str
    command: str = ""
    hiding: str = ""
    where: Trait = ""
    mends: list[str] = []
    skip: list[Target] = []


@cache
def edges() -> list[Edge]:
    """Return the table."""
    import msgspec.yaml

    return msgspec.yaml.decode((files(__package__) / "edges.yaml").read_bytes(), type=list[Edge])


def edge_of(finding: Finding, traits: set[Trait]) -> Edge:
    """Return the edge that a finding is about."""
    rows = [row for row in edges() if row.check == finding.id]
    fitting = (row for row in rows if row.hiding in ("", *finding.hides))
    return next(row for row in fitting if row.where in {"", *traits})


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return the findings that break an edge and follow from no other: failures first."""
    order = [row.check for row in edges()]
    broken = [f for f in findings if f.status in BROKEN and not f.folded_under and f.id in order]
    return sorted(broken, key=lambda f: (SEVERITY.index(f.status), order.index(f.id)))


def fill(edge: Edge, words: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return an edge's change and commands with the words in them that edges.yaml names."""
    table = compat()
    known = {
        "driver": str(table.driver.last_branch),
        "torch": table.torch,
        "cudnn": table.cudnn.below,
        "nvcc": table.toolkit.last,
        **words,
    }
    optional = [f"{{{name}}}" for name in ("remove", "rebuild") if not known[name]]
    lines = [line for line in edge.command.splitlines() if not any(o in line for o in optional)]
    return edge.change.format(**known), "\n".join(lines).format(**known).splitlines()
