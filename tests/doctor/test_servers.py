"""What checks make of a server: the GPUs it may see, rings among them, steps of a remedy."""

import itertools
import random
import time

import pytest

from volta_doctor.checks import servers
from volta_doctor.checks.topology import has_ring
from volta_doctor.facts.nvml import GpuFacts
from volta_doctor.facts.serve import Server

GPUS = [GpuFacts(index=i, uuid=f"GPU-{i}{i}-x") for i in range(3)]


@pytest.mark.parametrize(
    ("text", "indices", "unknown"),
    [
        ("0,2", [0, 2], []),
        (" 2 , 0", [2, 0], []),
        ("GPU-1,GPU-22-x", [1, 2], []),
        ("GPU-", [], ["GPU-"]),
        ("", [], []),
        ("-1", [], []),
        ("0,-1,1", [0], []),
        ("all", [], ["all"]),
        ("3", [], ["3"]),
        ("0,x,1", [0], ["x"]),
    ],
)
def test_a_list_of_devices(text, indices, unknown):
    chosen = servers.select(text, GPUS)
    assert [gpu.index for gpu in chosen.gpus] == indices
    assert chosen.unknown == unknown


def test_words_of_the_container_toolkit():
    assert servers.passed_in("all", GPUS).gpus == GPUS
    for text in ("none", "void", ""):
        assert servers.passed_in(text, GPUS) == servers.Selection([], [], [])
    assert servers.passed_in("2,GPU-00", GPUS).gpus == [GPUS[2], GPUS[0]]


def graph(size: int, edges) -> list[int]:
    masks = [0] * size
    for a, b in edges:
        masks[a] |= 1 << b
        masks[b] |= 1 << a
    return masks


def ring_by_trying(size: int, masks: list[int]) -> bool:
    orders = itertools.permutations(range(1, size))
    closed = ((0, *order, 0) for order in orders)
    return any(all(masks[a] >> b & 1 for a, b in itertools.pairwise(way)) for way in closed)


def test_rings_of_random_graphs():
    chance = random.Random(7)
    seen = set()
    for _ in range(200):
        size = chance.randint(3, 7)
        pairs = list(itertools.combinations(range(size), 2))
        masks = graph(size, [pair for pair in pairs if chance.random() < 0.5])
        assert has_ring(masks) == ring_by_trying(size, masks)
        seen.add(has_ring(masks))
    assert seen == {True, False}


def test_two_are_a_ring_where_they_are_joined():
    assert has_ring(graph(2, [(0, 1)]))
    assert not has_ring(graph(2, []))


def test_sixteen_ranks_are_searched_in_well_under_two_seconds():
    # Two halves of a cube mesh that meet in one GPU: every degree is high enough, yet no ring.
    left, right = range(8), range(7, 16)
    edges = [*itertools.combinations(left, 2), *itertools.combinations(right, 2)]
    started = time.monotonic()
    assert not has_ring(graph(16, edges))
    assert time.monotonic() - started < 1.0


def test_steps_are_for_the_systems_units_only():
    unit = Server(name="a.service", unit="a.service", engine="vllm", source="/etc/systemd/system/a")
    write, reload, restart = servers.without_variables(unit, "cuda-env", ["A", "B"])
    assert write.write == "/etc/systemd/system/a.service.d/volta-cuda-env.conf"
    assert write.content == "[Service]\nUnsetEnvironment=A B\n"
    assert reload.run == reload.undo == ["systemctl", "daemon-reload"]
    assert restart.run == ["systemctl", "try-restart", "a.service"]
    for source, name in (
        ("/proc/7", None),
        ("/home/a/.config/systemd/user/a.service", "a.service"),
    ):
        other = Server(name="x", unit=name, engine="vllm", source=source)
        assert servers.with_variable(other, "cuda-env", "A", "0") == []
