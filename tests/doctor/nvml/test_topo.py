"""Topology through real pynvml."""

from typing import Any

import msgspec
import pytest

from volta_doctor.facts.topo import TopoFacts

SXM2, PCIE = "v100-sxm2-16gb-x8", "v100-pcie-32gb-x2"
COLLECT = (
    "import msgspec; from volta_doctor.facts.topo import nvml;"
    "print(msgspec.json.encode(nvml.read_host()).decode())"
)
# How many NVLinks join each pair of a DGX-1, and its two sockets.
MESH = (
    "X1122000",
    "1X210200",
    "12X20010",
    "212X0001",
    "2000X112",
    "02001X21",
    "001012X2",
    "0001212X",
)
CUBE = [[{"X": "X", "0": "SYS"}.get(n, f"NV{n}") for n in row] for row in MESH]
SOCKETS = {"cpus": ["0-19,40-59"] * 4 + ["20-39,60-79"] * 4, "nodes": [0] * 4 + [1] * 4}


def matrix(size: int, cell: str) -> list[list[str]]:
    return [["X" if i == j else cell for j in range(size)] for i in range(size)]


@pytest.fixture
def topology(fake_host):
    def read(snapshot: str, **changes: Any) -> TopoFacts:
        return msgspec.json.decode(fake_host(snapshot, **changes).python(COLLECT), type=TopoFacts)

    return read


@pytest.mark.parametrize("omit", [[], ["nvmlDeviceGetNvLinkRemoteDeviceType"]])
def test_a_cube_mesh(topology, omit):
    topo = {"links": CUBE, "p2p": matrix(8, "OK"), **SOCKETS}
    facts = topology(SXM2, omit=omit, topo=topo)
    assert facts.links == CUBE
    assert (facts.p2p, facts.p2p_problem) == (matrix(8, "OK"), "")
    assert (facts.cpus, facts.nodes) == (SOCKETS["cpus"], SOCKETS["nodes"])
    assert facts.uuids[7] == "GPU-00000000-0000-0000-0000-000000000008"


@pytest.mark.parametrize("omit", [[], ["nvmlDeviceGetNvLinkRemoteDeviceType"]])
def test_links_to_switches_join_every_pair(topology, omit):
    links = matrix(8, "NV6")
    switches = [f"00000000:{bus:02X}:00.0" for bus in range(0xB0, 0xB6)]
    topo = {"links": links, "p2p": matrix(8, "OK"), "switches": switches, **SOCKETS}
    assert topology(SXM2, omit=omit, topo=topo).links == links


def test_cards_without_nvlink_and_a_driver_that_does_not_tell_the_nearest_node(topology):
    topo = {"links": matrix(2, "PHB"), "p2p": matrix(2, "CNS"), "cpus": ["0-63"] * 2}
    facts = topology(PCIE, omit=["nvmlDeviceGetMemoryAffinity"], topo=topo)
    assert facts.links == matrix(2, "PHB")
    assert facts.p2p == matrix(2, "CNS")
    assert (facts.cpus, facts.nodes) == (["0-63"] * 2, [None] * 2)


def test_a_driver_without_peer_status(topology):
    topo = {"links": matrix(2, "NODE"), **SOCKETS}
    facts = topology(PCIE, omit=["nvmlDeviceGetP2PStatus"], topo=topo)
    assert facts.p2p is None
    assert facts.p2p_problem == "nvmlDeviceGetP2PStatus: Function Not Found"


def test_a_lost_gpu_leaves_the_others_their_places(topology):
    topo = {"links": CUBE, "p2p": matrix(8, "OK"), **SOCKETS}
    facts = topology("gpu-lost", topo=topo)
    assert facts.uuids[3] == "GPU 3"
    assert facts.links[3] == ["?", "?", "?", "X", "?", "?", "?", "?"]
    assert facts.links[0] == ["X", "NV1", "NV1", "?", *CUBE[0][4:]]
    assert facts.p2p and facts.p2p[0][3] == "?"
