"""What the driver's modules make of packages, plans, keys and kernels, on made-up trees."""

import base64
import hashlib
import os

import pytest
from ansible_modules import load

from volta_doctor.catalog import compat

driver = load("volta_driver")
kmod = load("volta_kmod")
key = load("volta_key")

CATALOGUE = {
    "last_branch": compat().driver.last_branch,
    "flavour": "proprietary",
    "branches": [
        {"branch": 535, "volta": True, "ends": "2026-06"},
        {"branch": 580, "volta": True, "ends": "2028-06"},
        {"branch": 590, "volta": False},
    ],
}

STATUS = """\
Package: nvidia-kernel-dkms
Status: hold ok installed
Version: 580.95.05-1

Package: libnvidia-ml1
Status: install ok half-configured
Version: 580.95.05-1

Package: nvidia-smi
Status: deinstall ok config-files
Version: 535.261.03-1
"""


def test_dpkg_tells_holds_and_half_installed_packages():
    assert driver.parse_status(STATUS) == {
        "nvidia-kernel-dkms": driver.Package("580.95.05-1", True, "installed"),
        "libnvidia-ml1": driver.Package("580.95.05-1", False, "half-configured"),
    }


def test_rpm_packages_are_held_by_the_versionlock_of_their_version():
    text = "kmod-nvidia-latest-dkms 580.95.05-1.el9\nnvidia-modprobe 580.82.07-1.el9\n"
    found = driver.parse_rpm(text, "*nvidia*-*:580.95.05-*\n")
    assert [package.held for package in found.values()] == [True, False]


MADISON = """\
 nvidia-driver-cuda | 580.65.06-1 | file:/srv/repo  Packages
 nvidia-driver-cuda | 590.44.01-1 | file:/srv/repo  Packages
 nvidia-driver-cuda | 580.105.08-1 | file:/srv/repo  Packages
 nvidia-driver-cuda | 580.105.08-1 | file:/srv/other  Packages
"""


def test_madison_is_sorted_by_numbers():
    versions = ["590.44.01-1", "580.105.08-1", "580.65.06-1"]
    assert driver.parse_madison(MADISON) == {"nvidia-driver-cuda": versions}


@pytest.mark.parametrize(
    ("version", "installed", "wanted"),
    [
        ("", "", "580.105.08"),  # the newest of the branch, not of all
        ("", "580.65.06-1", "580.65.06"),  # what is here stays
        ("", "535.261.03-1", "580.105.08"),  # unless it is of another branch
        ("580.95.05", "580.65.06-1", "580.95.05"),
    ],
)
def test_the_version_is_kept_from_the_first_install_on(version, installed, wanted):
    offered = driver.parse_madison(MADISON)["nvidia-driver-cuda"]
    assert driver.choose(580, version, installed, offered) == wanted


def test_no_version_is_made_up_where_the_lists_have_none():
    assert driver.choose(580, "", "", ["535.261.03-1"]) == ""


def test_tools_with_numbers_of_their_own_stay_on_the_branch():
    offered = ["550.54.14-1", "535.171.04-1~deb12u1"]
    assert driver.pick("nvidia-persistenced", 535, "535.261.03", offered)[0] == offered[1]


def test_a_name_that_only_comes_as_another_branch_is_transitional():
    version, problem = driver.pick("nvidia-dkms-570-server", 570, "", ["580.95.05-0ubuntu1"])
    assert version == ""
    assert "nvidia-dkms-570-server is a transitional package" in problem
    assert "branch 580" in problem


PLAN = """\
Inst linux-headers-6.1.0-50-amd64 (6.1.170-1 Debian:12 [amd64])
Inst nvidia-kernel-dkms [535.261.03-1] (580.95.05-1 NVIDIA:1 [amd64])
Inst nvidia-container-toolkit (1.17.8-1 NVIDIA:1 [amd64])
Remv nvidia-kernel-open-dkms [535.261.03-1]
"""


def test_a_plan_within_the_branch_is_fine():
    assert driver.judge_plan(PLAN, 580) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "Inst libnvidia-compute-590 (590.44.01-1 NVIDIA:1 [amd64])",
            "libnvidia-compute-590 590.44",
        ),
        ("Inst linux-image-6.1.0-51-amd64 (6.1.180-1 Debian:12 [amd64])", "a new kernel"),
        ("Remv slurmd [22.05-1]", "would remove slurmd"),
    ],
)
def test_a_plan_that_jumps_branch_or_reaches_further_is_refused(line, words):
    [problem] = driver.judge_plan(PLAN + line + "\n", 580)
    assert words in problem


@pytest.mark.parametrize(
    ("branch", "flavour", "words"),
    [
        (590, "proprietary", "driver_branch 590 does not drive Volta: 580 is the last"),
        (550, "proprietary", "535 or 580"),
        (580, "open", "GPU System Processor"),
    ],
)
def test_a_driver_that_cannot_drive_volta_is_refused(branch, flavour, words):
    problems, _warning = driver.judge_choice(branch, flavour, CATALOGUE)
    assert words in problems[0]


def test_an_ended_branch_is_taken_with_a_warning():
    problems, warning = driver.judge_choice(535, "proprietary", CATALOGUE)
    assert problems == []
    assert "2026-06" in warning


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nvidia-kernel-dkms", True),
        ("libnvidia-ml1", True),
        ("libcuda1", True),
        ("nvidia-persistenced", True),
        ("linux-modules-nvidia-580-server-generic", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("nvidia-driver-pinning-580", False),
        ("cuda-toolkit-12-9", False),
    ],
)
def test_what_belongs_to_the_driver(name, part):
    assert bool(driver.DRIVER.match(name)) == part


def test_another_source_of_the_repository_is_named(tmp_path):
    own, other = tmp_path / "sources.list.d/volta-nvidia.sources", tmp_path / "sources.list"
    own.parent.mkdir()
    own.write_text("Types: deb\nURIs: http://mirror/debian12/\n")
    other.write_text("# deb http://mirror/debian12/ /\n")
    assert driver.other_sources("http://mirror/debian12", {str(own): ""}, tmp_path) == []
    other.write_text("deb [signed-by=/x] http://mirror/debian12/ /\n")
    assert driver.other_sources("http://mirror/debian12", {str(own): ""}, tmp_path) == [str(other)]


def test_headers_are_wanted_for_the_kernels_to_come():
    found = {"linux-image-amd64": driver.Package("6.1"), "linux-image-6.1.0-50-amd64": None}
    names = driver.missing_headers("linux-headers-", ["0.0.0-none", "0.0.0-none"], found)
    assert names == ["linux-headers-0.0.0-none", "linux-headers-amd64"]


def test_debians_module_is_found_by_its_install_line(tmp_path):
    assert kmod.module_name(tmp_path) == "nvidia"
    (tmp_path / "etc/modprobe.d").mkdir(parents=True)
    line = "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n"
    (tmp_path / "etc/modprobe.d/nvidia.conf").write_text(line)
    assert kmod.module_name(tmp_path) == "nvidia-current"


def test_a_failed_build_is_quoted(tmp_path):
    log = tmp_path / "nvidia/580.95.05/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text("CC nv.o\nnv.c:7:10: error: 'vm_flags' is read-only\nmake: leaving\n")
    assert kmod.log_end("580.95.05", "6.1.0-50-amd64", tmp_path).endswith(
        "ends: nv.c:7:10: error: 'vm_flags' is read-only"
    )
    assert kmod.log_end("535.1", "6.1.0-50-amd64", tmp_path) == ""


def test_an_initramfs_older_than_the_blacklist_is_made_anew(tmp_path):
    blacklist, image = tmp_path / "volta.conf", tmp_path / "boot/initrd.img-6.1"
    assert kmod.stale_initramfs(["6.1"], blacklist, tmp_path) == []
    image.parent.mkdir()
    image.touch()
    blacklist.touch()
    os.utime(image, (1, 1))
    assert kmod.stale_initramfs(["6.1", "6.2"], blacklist, tmp_path) == ["6.1"]


@pytest.mark.parametrize(
    ("version", "modules", "loaded", "words"),
    [
        ("", "", "", None),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Mon", "", "580.95.05", None),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1.2  Mon", "", "535.1.2", "535.1.2"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", "", "580.95.05", "open modules"),
        ("", "nouveau", "", "nouveau is loaded and drives 0000:3b:00.0"),
    ],
)
def test_what_is_in_the_modules_way(tmp_path, version, modules, loaded, words):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(version)
    if modules:
        (tmp_path / "sys/module" / modules).mkdir(parents=True)
        (tmp_path / "sys/module" / modules / "initstate").write_text("live\n")
    card = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    card.mkdir(parents=True)
    name = "nouveau" if modules else "nvidia"
    (card / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers" / name)
    found, nouveau, reasons = kmod.in_the_way("580.95.05", tmp_path)
    assert (found, nouveau) == (loaded, bool(modules))
    assert words in reasons[0] if words else reasons == []


def packet(body: bytes) -> bytes:
    return b"\x99" + len(body).to_bytes(2, "big") + body


def test_a_key_is_known_by_its_fingerprint(tmp_path):
    body = b"\x04" + bytes(range(64))
    wanted = hashlib.sha1(packet(body)).hexdigest().upper()
    uid = b"\xb4\x03abc"
    binary = packet(body) + uid
    text = base64.b64encode(binary).decode()
    armoured = (
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: 1\n\n"
        f"{text[:40]}\n{text[40:]}\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
    ).encode()
    assert key.fingerprints(binary) == key.fingerprints(armoured) == [wanted]
    file = tmp_path / "key.asc"
    file.write_bytes(armoured)
    assert key.holds(file, wanted)
    file.write_bytes(binary + packet(b"\x04other"))
    assert not key.holds(file, wanted), "a second key would be trusted too"


@pytest.mark.parametrize("data", [b"", b"<html>404</html>", b"\x99\x00\x02\x03x"])
def test_what_is_no_key_is_refused(data):
    with pytest.raises(ValueError, match="not an OpenPGP key"):
        key.fingerprints(data)
