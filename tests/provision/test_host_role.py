"""What the role `host` sets and advises, on made-up trees."""

import struct
from unittest import mock

import pytest
from ansible_modules import load

tunables = load("volta_tunables")
advice = load("volta_advice")


def test_a_choice_reads_as_the_word_in_brackets(tmp_path):
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    assert tunables.current(setting) == "madvise"
    setting.write_text("4096\t16384  4194304\n")
    assert tunables.current(setting) == "4096 16384 4194304"


def test_a_value_that_does_not_read_back_is_named(tmp_path):
    setting = tmp_path / "nr_hugepages"
    assert tunables.apply(setting, "8") == ""
    with mock.patch.object(tunables, "current", return_value="5"):
        assert tunables.apply(setting, "8").endswith("nr_hugepages was set to 8 and reads 5")
    assert "does not take 8" in tunables.apply(tmp_path / "missing/x", "8")


def test_what_this_kernel_lacks_is_left(tmp_path):
    path = tunables.sysctl_path(tmp_path, "kernel.numa_balancing")
    assert tunables.why_left(path) == "this kernel does not have it"
    path.parent.mkdir(parents=True)
    path.write_text("1\n")
    assert tunables.why_left(path) == ""
    with mock.patch.object(tunables.os, "access", return_value=False):
        assert "read-only" in tunables.why_left(path)


def test_a_later_drop_in_is_named(tmp_path):
    own = tmp_path / "etc/sysctl.d/90-volta.conf"
    for path, text in {
        "etc/sysctl.d/10-early.conf": "vm.swappiness=1\n",
        "etc/sysctl.d/90-volta.conf": "vm.swappiness = 10\n",
        "usr/lib/sysctl.d/99-late.conf": "# vm.swappiness = 60\nvm.dirty_ratio = 5\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert tunables.overridden(tmp_path, "vm.swappiness", own) == ""
    assert tunables.overridden(tmp_path, "vm.dirty_ratio", own).endswith("99-late.conf")


def test_a_drop_in_without_lines_is_removed(tmp_path):
    path = tmp_path / "volta.conf"
    tunables.write(path, tunables.drop_in(["vm.swappiness = 10"]))
    assert path.read_text().splitlines()[1:] == ["vm.swappiness = 10"]
    tunables.write(path, tunables.drop_in([]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cmdline", "advised"),
    [
        ("quiet", False),
        ("intel_iommu=on,sm_on", True),
        ("amd_iommu=on iommu=pt", False),
        ("intel_iommu=on iommu.passthrough=1", False),
    ],
)
def test_a_translating_iommu_is_advised_against(cmdline, advised):
    assert bool(advice.advise_iommu(cmdline)) == advised


def config(control):
    """A bridge's configuration space: an empty capability, then ACS."""
    first = struct.pack("<I", 0x140 << 20 | 1 << 16 | 0x0001)
    acs = struct.pack("<IHH", 1 << 16 | advice.ACS, 0x5F, control)
    return (b"\0" * 0x100 + first).ljust(0x140, b"\0") + acs


def test_access_control_is_advised_against_where_gpus_are_peers(tmp_path):
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    root_port = tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0"
    for number, (bridge, control) in enumerate(
        {"0000:3c:01.0": 0x04, "0000:3c:02.0": 0x10}.items()
    ):
        gpu = root_port / bridge / f"0000:3d:0{number}.0"
        gpu.mkdir(parents=True)
        (gpu.parent / "config").write_bytes(config(control))
        (devices / gpu.name).symlink_to(gpu)
    (root_port / "config").write_bytes(b"\0" * 64)
    both = ["0000:3d:00.0", "0000:3d:01.0"]
    (text,) = advice.advise_acs(tmp_path, both)
    assert "at 1 of 3 bridges above them: 0000:3c:01.0." in text
    assert advice.advise_acs(tmp_path, both[:1]) == []
