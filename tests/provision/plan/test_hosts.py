"""What there is to run on: from a flag, from snapshots, and which GPUs of it a server gets."""

from dataclasses import replace

import pytest

from volta_doctor.facts.model import Facts, Section, Snapshot, encode
from volta_provision.errors import StackError
from volta_provision.plan.hosts import of_facts, of_files, of_flag
from volta_provision.plan.seats import seats

GIB = 2**30


def test_a_flag_gives_an_idle_linked_host():
    found = seats([of_flag("v100-sxm2-16gb", 2)], 2)
    assert found.cards.total == (16384 * 2**20,) * 2
    assert found.cards.used == (0, 0)
    assert found.linked
    assert found.first_ones


def test_pcie_cards_are_not_linked():
    assert not seats([of_flag("v100-pcie-32gb", 2)], 2).linked


def test_a_snapshot_tells_cards_neighbours_and_links(snapshot):
    [host] = of_files([snapshot("gpu1")])
    assert host.name == "gpu1"
    assert [gpu.model for gpu in host.gpus] == ["v100-sxm2-32gb"] * 2
    assert [gpu.used for gpu in host.gpus] == [1074790400] * 2
    assert host.linked == {(0, 1)}
    assert not host.notes


def test_an_idle_plan_forgets_the_neighbours(snapshot):
    [host] = of_files([snapshot("gpu1")], idle=True)
    assert [gpu.used for gpu in host.gpus] == [0, 0]


def test_a_gpu_that_is_lost_or_no_volta_card_is_named(snapshot):
    def change(sections):
        one, other = sections["nvml"]["gpus"]
        one["handle_error"] = {"error": 15, "text": "GPU is lost"}
        third = {**other, "index": 2, "name": "Tesla T4", "compute_capability": "7.5"}
        sections["nvml"]["gpus"].append({**third, "pci": {"device_id": "0x1EB810DE"}})

    [host] = of_files([snapshot("gpu1", change)])
    assert [gpu.index for gpu in host.gpus] == [1]
    assert host.notes == (
        "GPU 0 is not used: NVML cannot open it: 15 (GPU is lost)",
        "GPU 2 is not used: Tesla T4 is no Volta card",
    )


def test_without_a_driver_the_bus_and_the_data_sheets_tell(snapshot):
    def change(sections):
        sections["nvml"] = {"init_error": {"error": 9, "text": "Driver Not Loaded"}}
        del sections["topo"]

    [host] = of_files([snapshot("gpu1", change)])
    assert [gpu.total for gpu in host.gpus] == [32768 * 2**20] * 2
    assert "NVML does not answer (9 (Driver Not Loaded))" in host.notes[0]
    assert "how the GPUs are joined is not known" in host.notes[1]


def test_a_busy_gpu_is_left_out(snapshot):
    def change(sections):
        sections["nvml"]["gpus"][0]["memory"]["used"] = 20 * GIB

    found = seats(of_files([snapshot("gpu1", change)]), 1)
    assert (found.same, found.first_ones, found.whole) == ((1,), False, False)
    assert found.cards.used == (1074790400,)


def test_an_nvlink_outweighs_some_megabytes():
    """Pairs 0-1 and 2-3 are linked, as on a board with two of them; 1 and 3 are a bit emptier."""
    host = of_flag("v100-sxm2-16gb", 4)
    used = (300 << 20, 0, 300 << 20, 0)
    gpus = tuple(
        type(g)(g.index, g.model, g.total, u) for g, u in zip(host.gpus, used, strict=True)
    )
    pairs = frozenset({(0, 1), (2, 3)})
    host = replace(host, gpus=gpus, linked=pairs)
    assert seats([host], 2).linked
    assert not seats([host], 4).linked


def test_the_weakest_host_decides(snapshot):
    def busy(sections):
        sections["nvml"]["gpus"][1]["memory"]["used"] = 8 * GIB

    def slow(sections):
        for gpu in sections["nvml"]["gpus"]:
            gpu["pci"]["device_id"] = "0x1DB610DE"  # a PCIe card
        sections["topo"]["links"] = [["X", "PHB"], ["PHB", "X"]]

    hosts = of_files([snapshot("a", busy), snapshot("b", slow)])
    found = seats(hosts, 2)
    assert found.cards.used == (1074790400, 8 * GIB)
    assert found.cards.model == "v100-pcie-32gb"
    assert not found.linked
    assert seats(hosts, 4) is None


def test_two_snapshots_of_one_name_are_told_apart(snapshot, tmp_path):
    first = snapshot("gpu1")
    second = tmp_path / "again.json"
    second.write_bytes(first.read_bytes())
    names = [host.name for host in of_files([first, second])]
    assert names == [f"gpu1 ({first})", f"gpu1 ({second})"]


def test_a_host_without_volta_cards_asks_for_the_flag():
    with pytest.raises(StackError, match="name the cards with --gpu and --count"):
        of_facts(Facts(), "this host")


@pytest.mark.parametrize(
    "text",
    [
        "[volta]\ngpu1 ansible_host=192.0.2.11\n",
        "volta:\n  hosts:\n    gpu1:\n",
        '{"_meta": {"hostvars": {}}, "all": {"children": ["volta"]}}',
    ],
)
def test_an_inventory_is_answered_with_the_commands(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(StackError) as error:
        of_files([path])
    assert f"ansible all -i {path} -m fetch" in str(error.value)


def test_what_is_no_snapshot_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(encode(Snapshot(schema=1, tool="t", taken="today", facts=Facts())))
    with pytest.raises(StackError, match=r"x\.json: not a snapshot: no time.*makes one"):
        of_files([path])
    with pytest.raises(StackError, match="No such file"):
        of_files([tmp_path / "nowhere"])


def test_a_section_that_failed_is_no_crash(snapshot):
    facts = Facts(nvml=Section(ok=False, error="no answer within 10 s"))
    with pytest.raises(StackError, match="neither NVML nor the PCI bus"):
        of_facts(facts, "x")
