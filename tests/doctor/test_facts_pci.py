"""PCI devices, the bridges above them and their access control."""

import struct

import pytest

from volta_doctor.facts import pci
from volta_doctor.probe import CannotLook

PATH = "../../../devices/pci0000:16/0000:16:00.0/0000:17:00.0/0000:18:04.0"


def config(control):
    """4 KiB of a bridge: AER at 0x100, then ACS, the end of the list."""
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x148 << 20 | 2 << 16 | 0x0001)
    struct.pack_into("<IHH", data, 0x148, 1 << 16 | 0x000D, 0x005F, control)
    return bytes(data)


def tree(bus="0000:1a:00.0", place=f"{PATH}/0000:1a:00.0"):
    real = f"/sys/devices/{place.removeprefix('../../../devices/')}"
    return {
        f"{pci.DEVICES}/{bus}": f"-> {place}",
        f"{real}/vendor": "0x10de\n",
        f"{real}/device": "0x1db5\n",
        f"{real}/class": "0x030200\n",
        f"{real}/numa_node": "1\n",
        f"{real}/current_link_width": "8\n",
        f"{real}/max_link_width": "16\n",
        f"{real}/current_link_speed": "2.5 GT/s PCIe\n",
        f"{real}/max_link_speed": "8.0 GT/s PCIe\n",
    }


def test_a_gpu_below_a_switch(host):
    bridge = f"{pci.DEVICES}/0000:17:00.0/"
    files = tree() | {f"{bridge}vendor": "0x10b5\n", f"{bridge}config": config(0x001D)}
    facts = pci.collect(host(files=files))
    (gpu,) = facts.gpus
    assert gpu.bridges == ["0000:16:00.0", "0000:17:00.0", "0000:18:04.0"]
    assert (gpu.numa_node, gpu.link_width, gpu.link_width_max) == (1, 8, 16)
    assert (gpu.link_speed, gpu.link_speed_max) == ("2.5 GT/s PCIe", "8.0 GT/s PCIe")
    root, switch, _ = facts.bridges
    assert switch.acs == ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    assert root.acs is None
    assert "No such file" in root.acs_problem


def test_a_virtual_machine_shows_no_bridge(host):
    place = "../../../devices/LNXSYSTM:00/VMBUS:01/47505500-0001/pci0001:00/0001:00:00.0"
    (gpu,) = pci.collect(host(files=tree("0001:00:00.0", place))).gpus
    assert gpu.bridges == []


def test_no_numa_node(host):
    files = tree() | {f"/sys/devices/{PATH[17:]}/0000:1a:00.0/numa_node": "-1\n"}
    assert pci.collect(host(files=files)).gpus[0].numa_node is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [(config(1)[:64], "only root"), (config(1)[:256], "platform gives no access")],
)
def test_half_a_configuration_space_says_nothing_of_acs(data, reason):
    with pytest.raises(CannotLook, match=reason):
        pci.parse_acs(data)


@pytest.mark.parametrize("data", [config(0), bytes(4096), b"\xff" * 4096])
def test_a_bridge_without_acs(data):
    assert pci.parse_acs(data) == []


def test_a_capability_list_that_runs_in_a_circle():
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x100 << 20 | 0x0001)
    assert pci.parse_acs(bytes(data)) == []


@pytest.mark.parametrize(
    ("written", "bus_id"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("PCI:0000:1a:00", "0000:1a:00.0"),
        ("0000:1a:00.1", "0000:1a:00.1"),
        ("0004:04:00.0", "0004:04:00.0"),
        ("1a:00", "0000:1a:00.0"),
        ("GPU 3", "GPU 3"),
    ],
)
def test_every_way_to_write_a_bus_id(written, bus_id):
    assert pci.bus_id(written) == bus_id
