"""What a host is, told from made-up trees."""

import sys
from pathlib import Path

import pytest
from ansible_modules import load

from volta_doctor.catalog import compat

facts = load("volta_facts")
python = load("volta_python")

VOLTA = {
    "first_device_id": compat().volta.first_device_id,
    "last_device_id": compat().volta.last_device_id,
    "names": compat().volta.names,
}


@pytest.fixture
def write(tmp_path):
    def write(path, content=""):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / path).write_bytes(content)

    return write


@pytest.fixture
def card(write, tmp_path):
    def card(address, device, vendor="0x10de", class_="0x030200", driver="", config=b"\xde\x10"):
        here = f"sys/bus/pci/devices/{address}"
        for name, value in {"vendor": vendor, "device": f"0x{device}", "class": class_}.items():
            write(f"{here}/{name}", value + "\n")
        write(f"{here}/config", config)
        if driver:
            (tmp_path / here / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")

    return card


def test_a_card_is_told_with_its_name_and_its_driver(tmp_path, card):
    card("0000:3b:00.0", "1db5", driver="nvidia")
    card("0000:5e:00.0", "1ac2", class_="0x068000")  # an NVSwitch
    card("0000:00:02.0", "1db1", vendor="0x8086", class_="0x030000")
    assert facts.gpus(tmp_path, VOLTA) == [
        {
            "address": "0000:3b:00.0",
            "device": "1db5",
            "volta": True,
            "name": "Tesla V100 SXM2 32GB",
            "driver": "nvidia",
            "lost": False,
        }
    ]


def test_a_card_that_fell_off_the_bus_reads_ones(tmp_path, card):
    card("0000:3b:00.0", "1db5", config=b"\xff" * 64)
    assert facts.gpus(tmp_path, VOLTA)[0]["lost"]


@pytest.mark.parametrize(
    ("device", "volta"), [("1db1", True), ("1df6", True), ("20b0", False), ("1cb3", False)]
)
def test_volta_is_told_by_the_catalogue(tmp_path, card, device, volta):
    card("0000:3b:00.0", device, driver="nouveau")
    found = facts.look(tmp_path, VOLTA)
    assert (found["volta"], found["profile"]) == (volta, "v100" if volta else "cpu")
    assert found["nouveau"]["bound"] == ["0000:3b:00.0"]
    assert not facts.look(tmp_path, {})["volta"]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (
            'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\n'
            "VERSION_CODENAME=bookworm\nID=debian\n",
            ("debian", "12", "12", "bookworm", "debian"),
        ),
        (
            'NAME="Ubuntu"\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\nID=ubuntu\nID_LIKE=debian',
            ("ubuntu", "22.04", "22", "jammy", "debian"),
        ),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"',
            ("rocky", "9.4", "9", "", "redhat"),
        ),
        ("ID='arch'\nID_LIKE=debian\n", ("arch", "", "", "", "")),
    ],
)
def test_a_distribution_is_told_by_its_own_id(tmp_path, write, text, known):
    write("etc/os-release", text)
    system = facts.os_release(tmp_path)
    assert tuple(system[name] for name in ("id", "version", "major", "codename", "family")) == known


def test_nouveau_is_loaded_where_the_kernel_shows_it(tmp_path, write):
    assert not facts.look(tmp_path, VOLTA)["nouveau"]["loaded"]
    write("sys/module/nouveau/initstate", "live")
    assert facts.look(tmp_path, VOLTA)["nouveau"] == {"loaded": True, "bound": []}


def test_the_next_kernel_is_the_newest_with_an_image(tmp_path, write):
    write("proc/sys/kernel/osrelease", "6.1.0-9-amd64\n")
    for kernel in ("6.1.0-9-amd64", "6.1.0-28-amd64", "6.1.0-40-amd64"):
        write(f"lib/modules/{kernel}/modules.dep")
    assert facts.kernels(tmp_path)["next"] == "6.1.0-9-amd64"
    write("boot/vmlinuz-6.1.0-28-amd64")
    write("boot/vmlinuz-6.1.0-9-amd64")
    (tmp_path / "lib/modules/6.1.0-28-amd64/build").mkdir()
    found = facts.kernels(tmp_path)
    assert found["next"] == "6.1.0-28-amd64"
    assert found["installed"] == ["6.1.0-40-amd64", "6.1.0-28-amd64", "6.1.0-9-amd64"]
    assert [kernel for kernel, there in found["headers"].items() if there] == ["6.1.0-28-amd64"]


PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.44.01  Release Build  (root@host)"
)


@pytest.mark.parametrize(
    ("version", "loaded", "is_open"),
    [(PROPRIETARY, "580.95.05", False), (OPEN, "590.44.01", True), ("", "", False)],
)
def test_the_loaded_driver_is_told_with_its_flavour(tmp_path, write, version, loaded, is_open):
    write("proc/driver/nvidia/version", version)
    driver = facts.nvidia_driver(tmp_path)
    assert (driver["loaded"], driver["open"], driver["library"]) == (loaded, is_open, "")


def test_the_library_is_told_by_what_its_link_leads_to(tmp_path, write):
    write("usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.261.03")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to(
        "nvidia/current/libnvidia-ml.so.535.261.03"
    )
    assert facts.nvidia_driver(tmp_path)["library"] == "535.261.03"
    assert not facts.nvidia_driver(tmp_path)["runfile"]
    write("usr/bin/nvidia-uninstall")
    assert facts.nvidia_driver(tmp_path)["runfile"]


def test_secure_boot_is_on_off_or_not_told(tmp_path, write):
    assert facts.secure_boot(tmp_path, container=False) is False
    assert facts.secure_boot(tmp_path, container=True) is None
    (tmp_path / facts.EFI).mkdir(parents=True)
    assert facts.secure_boot(tmp_path, container=False) is None
    write(facts.SECURE_BOOT, b"\6\0\0\0\1")
    assert facts.secure_boot(tmp_path, container=False) is True
    write(facts.SHIM_DISABLED, b"\6\0\0\0\1")
    assert facts.secure_boot(tmp_path, container=False) is False


@pytest.mark.parametrize(
    ("here", "system", "default", "path", "package"),
    [
        ((3, 11), "debian-12", "python3.11", "ansible's", "python3"),
        ((3, 10), "ubuntu-22", "python3.10", "ansible's", "python3.11"),
        ((3, 9), "arch-1", "python3.14", "ansible's", ""),
        ((3, 9), "redhat-9", "python3.9", "/bin/python3.12", "python3.12"),
    ],
)
def test_a_python_is_found_or_its_package_known(
    tmp_path, monkeypatch, here, system, default, path, package
):
    monkeypatch.setattr(python.sys, "version_info", (*here, 0))
    monkeypatch.setattr(python.sys, "executable", "ansible's")
    monkeypatch.setattr(python.shutil, "which", lambda name: {path.split("/")[-1]: path}.get(name))
    monkeypatch.setattr(python, "DEFAULT", tmp_path / "python3")
    (tmp_path / "python3").symlink_to(default)
    family, major = system.split("-")
    found = python.find_python({"id": family, "family": family, "major": major})
    assert (found["path"], found["package"]) == (path, package)


def test_what_is_missing_is_named_for_the_python_of_the_release(monkeypatch):
    monkeypatch.setattr(python.shutil, "which", lambda name: None)
    own = {"path": sys.executable, "version": "3.9", "supported": False, "package": "python3.11"}
    by_apt, by_dnf = (python.missing_tools(own, dnf) for dnf in (False, True))
    assert by_apt["missing_tools"] == ["Python 3.11 or 3.12 or 3.13", "venv"]
    assert by_apt["missing_packages"] == ["python3.11-venv"]
    assert by_dnf["missing_build_packages"] == ["cmake", "gcc-c++", "python3.11-devel"]
    assert python.missing_tools({**own, "package": ""}, False)["missing_packages"] == []


def test_a_class_of_hosts_is_what_its_binaries_depend_on():
    rocky = {"id": "rocky", "version": "9.4", "arch": "ppc64le"}
    assert python.host_class(rocky, "3.12") == "rocky-9.4-ppc64le-cp312"


def test_a_service_stays_with_its_manager(tmp_path):
    root, unit, run = (tmp_path / name for name in ("volta", "volta-serve.service", "run"))
    assert facts.service_manager(0, root, unit, run) == ("supervisor", True)
    (run / "systemd/system").mkdir(parents=True)
    assert facts.service_manager(0, root, unit, run) == ("systemd", True)
    assert facts.service_manager(1000, root, unit, run) == ("supervisor", True)  # not logged in
    (run / "user/1000/systemd/private").mkdir(parents=True)
    assert facts.service_manager(1000, root, unit, run) == ("systemd-user", True)
    (root / "service").mkdir(parents=True)
    (root / "service/supervisord.conf").touch()
    assert facts.service_manager(1000, root, unit, run) == ("supervisor", True)
    unit.touch()
    assert facts.service_manager(1001, root, unit, run) == ("systemd-user", False)


def test_the_root_is_where_the_unit_runs_from(tmp_path):
    unit = tmp_path / "volta-serve.service"
    assert facts.installed_root(unit) is None
    unit.write_text("[Service]\nEnvironmentFile=/data/volta/current/serve.env\n")
    assert facts.installed_root(unit) == Path("/data/volta")
