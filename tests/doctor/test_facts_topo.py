"""Topology from nvidia-smi's text, and what stands in for NVML."""

import re

import pytest

from volta_doctor.facts import topo
from volta_doctor.facts.model import Section
from volta_doctor.facts.smi.stand_in import for_topo as stand_in
from volta_doctor.facts.topo import smi

# The hybrid cube mesh of a DGX-1: how many NVLinks join each pair.
MESH = """X 1 1 2 2 0 0 0
          1 X 2 1 0 2 0 0
          1 2 X 2 0 0 1 0
          2 1 2 X 0 0 0 1
          2 0 0 0 X 1 1 2
          0 2 0 0 1 X 2 1
          0 0 1 0 1 2 X 2
          0 0 0 1 2 1 2 X"""
CUBE = [[{"X": "X", "0": "SYS"}.get(n, f"NV{n}") for n in row.split()] for row in MESH.split("\n")]
LIST = "GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-0a)\nGPU 1: Tesla V100-SXM2-16GB (UUID: GPU-0b)\n"


@pytest.fixture
def dump(data):
    return lambda name: (data / "topo" / name).read_text()


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("dgx-1v.topo-m.txt", [None] * 8),
        ("sxm2-8gpu.driver-550.topo-m.txt", [0] * 4 + [1] * 4),
    ],
)
@pytest.mark.parametrize("spaces", [False, True])
def test_the_cube_mesh_with_old_and_new_columns(dump, name, nodes, spaces):
    text = dump(name)
    if spaces:  # as it arrives from a web page
        text = re.sub(r"\t+", "    ", text)
    matrix = smi.parse(text)
    assert matrix
    assert matrix.cells == CUBE
    assert matrix.cpus == ["0-19,40-59"] * 4 + ["20-39,60-79"] * 4
    assert matrix.nodes == nodes


def test_peer_access_and_an_underlined_header(dump):
    text = dump("two-gpus.driver-580.topo-p2p.txt")
    underlined = text.replace("GPU0\tGPU1\t", "\x1b[4mGPU0\tGPU1\t\x1b[0m", 1)
    for version in (text, underlined):
        matrix = smi.parse(version)
        assert matrix
        assert matrix.cells == [["X", "GNS"], ["GNS", "X"]]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\tGPU0\tGPU1\nGPU0\t X \tNV2\n"])
def test_what_is_no_matrix(text):
    assert smi.parse(text) is None


SMI = {
    "nvidia-smi topo -m": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7\n",
    "nvidia-smi topo -p2p r": " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n",
    "nvidia-smi -L": LIST,
}


REFUSED = Section(ok=False, error="no library")


def test_nvidia_smi_stands_in_for_nvml(host):
    section = stand_in(host(commands=SMI), REFUSED)
    assert section.data == topo.TopoFacts(
        source="nvidia-smi topo -m",
        uuids=["GPU-0a", "GPU-0b"],
        links=[["X", "NV2"], ["NV2", "X"]],
        p2p=[["X", "OK"], ["OK", "X"]],
        cpus=["0-7", "0-7"],
        nodes=[None, None],
    )


def test_peer_access_that_an_old_nvidia_smi_cannot_show(host):
    old = SMI | {"nvidia-smi topo -p2p r": (1, "Invalid combination of input arguments.", "")}
    facts = stand_in(host(commands=old), REFUSED).data
    assert facts.p2p is None
    assert facts.p2p_problem == "nvidia-smi topo -p2p r: Invalid combination of input arguments."


def test_both_reasons_are_told(host):
    error = stand_in(host(), REFUSED).error
    assert error == "no library; nvidia-smi: No such file or directory"


def test_an_nvidia_smi_that_hangs_is_not_asked_again(host):
    hung = host(commands=SMI | {"nvidia-smi -q -x": (None, "", "")})
    assert stand_in(hung, REFUSED) is REFUSED
    assert hung.asked == ["nvidia-smi -q -x"]
