"""Package collectors: dpkg, apt, rpm and OpenPGP keyrings."""

import pytest

from volta_doctor.facts import packages
from volta_doctor.facts.packages import apt, rpm
from volta_doctor.facts.packages.openpgp import sha1_bound_keys
from volta_doctor.probe import CannotLook

STATUS = """Package: adduser
Status: install ok installed
Version: 3.134

Package: nvidia-driver
Status: hold ok installed
Architecture: amd64
Version: 580.95.05-1
Depends: nvidia-driver-libs (= 580.95.05-1),
 nvidia-kernel-dkms (= 580.95.05-1) | nvidia-kernel-580.95.05

Package: libnvidia-old1
Status: deinstall ok config-files
Version: 470.1-1

Package: unattended-upgrades
Status: install ok installed
Version: 2.9

Package: nvidia-cuda-toolkit
Status: install ok installed
Version: 11.8.89~11.8.0-5~deb12u1
"""
POLICY = """nvidia-driver:
  Installed: 580.95.05-1
  Candidate: 590.44.01-1
  Version table:
     590.44.01-1 500
        500 https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
 *** 580.95.05-1 100
        100 /var/lib/dpkg/status
libcuda1:i386:
  Installed: (none)
  Candidate: (none)
"""
SHOW = """Package: nvidia-driver
Version: 590.44.01-1
Depends: nvidia-driver-libs (= 590.44.01-1), libc6

"""
CONFIG = """APT "";
APT::Periodic "";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade::Package-Blacklist "";
Unattended-Upgrade::Package-Blacklist:: "nvidia";
Unattended-Upgrade::Package-Blacklist:: "libnvidia";
"""
PREFERENCES = """# written by hand
Package: *nvidia* libcuda1
 cuda-drivers
Pin: version 580.*
Pin-Priority: 1001

Package: broken
Pin: version 1
"""
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
CARD = {
    "/sys/bus/pci/devices/0000:1a:00.0/vendor": "0x10de",
    "/sys/bus/pci/devices/0000:1a:00.0/device": "0x1db5",
    "/sys/bus/pci/devices/0000:1a:00.0/class": "0x030200",
}


def test_apt_host(host, data):
    probe = host(
        files=CARD
        | {
            apt.STATUS: STATUS,
            "/etc/apt/preferences.d/nvidia": PREFERENCES,
            "/etc/apt/preferences.d/nvidia.disabled": PREFERENCES,
            "/etc/apt/sources.list": f"# deb {CUDA} /\ndeb http://deb.debian.org/debian sid main\n",
            "/etc/apt/sources.list.d/cuda.list": f"deb [signed-by=/usr/c.asc] {CUDA} /\n",
            "/usr/c.asc": (data / "keys/sha1.asc").read_bytes(),
            "/usr/share/apt/default-sequoia.config": (
                "[hash_algorithms]\nsha1.second_preimage_resistance = 2026-02-01    # legacy\n"
            ),
        },
        commands={
            "apt-cache policy nvidia-driver": POLICY,
            "apt-cache show nvidia-driver=590.44.01-1": SHOW,
            "apt-config dump": CONFIG,
            "sqv": "",
        },
    )
    facts = packages.collect(probe)
    assert [p.name for p in facts.installed] == ["nvidia-driver", "nvidia-cuda-toolkit"]
    (driver,) = facts.drivers
    assert (driver.held, driver.candidate) == (True, "590.44.01-1")
    assert driver.depends[1] == "nvidia-kernel-dkms (= 580.95.05-1) | nvidia-kernel-580.95.05"
    assert driver.candidate_depends == ["nvidia-driver-libs (= 590.44.01-1)", "libc6"]
    (pin,) = facts.pins
    assert (pin.packages, pin.priority) == ("*nvidia* libcuda1 cuda-drivers", 1001)
    assert facts.auto_upgrades.enabled
    assert facts.auto_upgrades.blacklist == ["nvidia", "libnvidia"]
    (repository,) = facts.repositories
    assert (repository.uri, repository.line, repository.trusted) == (CUDA, 1, False)
    assert repository.sha1_keys == repository.keys != []
    assert facts.sha1_rejected_from == "2026-02-01"


def test_apt_cache_is_not_asked_without_a_card_or_a_driver(host):
    bare = {"/sys/bus/pci/devices": None, apt.STATUS: STATUS}
    probe = host(files=bare, commands={"apt-config dump": CONFIG})
    facts = packages.collect(probe)
    assert "no NVIDIA card" in facts.candidates_problem
    assert probe.asked == ["apt-config dump"]


def test_a_silent_apt_cache_is_a_stated_problem(host):
    commands = {"apt-cache policy nvidia-driver": (100, "", "E: lock"), "apt-config dump": CONFIG}
    facts = packages.collect(host(files=CARD | {apt.STATUS: STATUS}, commands=commands))
    assert facts.candidates_problem == "apt-cache policy: E: lock"
    assert facts.drivers[0].candidate is None
    commands = {
        "apt-cache policy nvidia-driver": POLICY,
        "apt-cache show nvidia-driver=590.44.01-1": (100, "", "E: no such version"),
        "apt-config dump": CONFIG,
    }
    facts = packages.collect(host(files=CARD | {apt.STATUS: STATUS}, commands=commands))
    assert facts.candidates_problem == "apt-cache show: E: no such version"


@pytest.mark.parametrize(
    ("name", "version", "is_driver"),
    [
        ("nvidia-driver-580-server", "580.95.05-0ubuntu0.24.04.2", True),
        ("linux-modules-nvidia-580-server-generic", "6.8.0-87.88+1", True),
        ("cuda-drivers", "580.95.05-0ubuntu1", True),
        ("libcuda1", "535.247.01-1~deb12u1", True),
        ("libnvidia-ml1", "580.95.05-1", True),
        ("nvidia-tesla-470-kernel-dkms", "470.256.02-2", True),
        ("libnvidia-container1", "1.18.0-1", False),
        ("libnvidia-egl-wayland1", "1:1.1.10-1", False),
        ("nvidia-cuda-toolkit", "11.8.89~11.8.0-5", False),
        ("nvidia-driver-pinning-580", "580-1", False),
    ],
)
def test_what_is_part_of_the_driver(name, version, is_driver):
    assert packages.Package(name=name, version=version).is_driver is is_driver


def test_sources_in_both_formats():
    line = f"deb [arch=amd64 trusted=yes signed-by=/k.gpg] {CUDA} /"
    ((one, key),) = apt.parse_sources(line, "/etc/apt/sources.list.d/a.list")
    assert (one.trusted, key) == (True, "/k.gpg")
    deb822 = f"Types: deb\nURIs: {CUDA}\nSuites: /\nTrusted: yes\nSigned-By: /k.gpg\n"
    ((two, key),) = apt.parse_sources(deb822, "/etc/apt/sources.list.d/a.sources")
    assert (two.trusted, two.line, key) == (True, 2, "/k.gpg")
    assert apt.parse_sources(f"Enabled: no\n{deb822}", "a.sources") == []


def test_a_key_inside_the_sources_file(host, data):
    armour = (data / "keys/sha1.asc").read_text().strip().splitlines()
    folded = "\n".join(f" {line or '.'}" for line in armour)
    text = f"Types: deb\nURIs: {CUDA}\nSuites: /\nSigned-By:\n{folded}\n"
    ((repository, key),) = apt.parse_sources(text, "cuda.sources")
    read = apt.read_keys(host(), repository, key)
    assert (read.keyring, len(read.sha1_keys), read.key_problem) == ("inline", 1, None)


def test_without_signed_by_nvidia_s_keys_are_found_among_apt_s_own(host, data):
    files = {
        "/etc/apt/trusted.gpg.d/other.gpg": (data / "keys/sha512.gpg").read_bytes(),
        "/etc/apt/trusted.gpg": (data / "keys/sha1.asc").read_bytes(),
    }
    repository = packages.Repository(uri=CUDA, file="x", line=1)
    assert len(apt.read_keys(host(files=files), repository, "").keys) == 2
    lost = apt.read_keys(host(), repository, "/gone.gpg")
    assert lost.key_problem == "/gone.gpg: No such file or directory"


@pytest.mark.parametrize(
    ("file", "bound"),
    [
        ("sha1.asc", True),
        ("sha1-signed-by-another.gpg", True),
        ("re-signed.asc", False),
        ("sha512.gpg", False),
    ],
)
def test_only_the_key_s_own_signatures_bind_it(data, file, bound):
    assert list(sha1_bound_keys((data / "keys" / file).read_bytes()).values()) == [bound]


def test_no_keyring_is_an_error_not_a_good_key(data):
    key = (data / "keys/sha512.gpg").read_bytes()
    for broken in (
        b"",
        b"<html>",
        key[:-9],
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!!\n-----END",
    ):
        with pytest.raises(ValueError, match=r".+"):
            sha1_bound_keys(broken)


def test_rpm_host(host):
    listing = "kernel 5.14.0-1.el9\nkmod-nvidia-latest-dkms 580.95.05-1.el9\n"
    probe = host(
        files={
            "/etc/dnf/plugins/versionlock.list": "# a\nkmod-nvidia-latest-dkms-3:580.95.05-1.*\n",
            "/etc/dnf/automatic.conf": "[commands]\napply_updates = yes\n",
            "/etc/systemd/system/timers.target.wants/dnf-automatic.timer": "",
        },
        commands={r"rpm -qa --qf %{NAME} %{VERSION}-%{RELEASE}\n": listing},
    )
    facts = packages.collect(probe)
    assert (facts.manager, [p.name for p in facts.drivers]) == ("dnf", ["kmod-nvidia-latest-dkms"])
    (pin,) = facts.pins
    assert (pin.packages, pin.pin) == ("kmod-nvidia-latest-dkms", "versionlock 3:580.95.05-1.*")
    assert facts.auto_upgrades.enabled
    assert not rpm.parse_automatic("apply_updates = no", timer=True).enabled


def test_neither_manager(host):
    with pytest.raises(CannotLook, match="neither dpkg"):
        packages.collect(host())
