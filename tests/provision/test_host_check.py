"""What is wrong with a host, judged from what was seen on it."""

import copy
from pathlib import Path

import pytest
import yaml
from ansible_modules import load

facts = load("volta_facts")
check = load("volta_host_check")

ROLE = Path(__file__).parents[2] / "playbooks/roles/preflight/vars/main"
CARDS = yaml.safe_load((ROLE / "cards.yml").read_text())["preflight_cards"]
SYSTEMS = yaml.safe_load((ROLE / "main.yml").read_text())["preflight_systems"]
KERNEL = "6.1.0-40-amd64"
V100 = {
    "address": "0000:3b:00.0",
    "device": "1db6",
    "volta": True,
    "name": "Tesla V100 PCIe 32GB",
    "driver": "",
    "lost": False,
}
T4 = V100 | {"address": "0000:5e:00.0", "device": "1eb8", "volta": False, "name": ""}
SEEN = {"packages": {}, "ppa": [], "operator": False, "key_enrolled": False, "no_headers": []}


@pytest.fixture
def host():
    return {
        "uid": 0,
        "user": {"name": "root"},
        "manager_runs": True,
        "python": {"path": "/usr/bin/python3", "version": "3.11", "supported": True},
        "missing_tools": [],
        "missing_packages": [],
        "os": {
            "id": "debian",
            "version": "12",
            "major": "12",
            "family": "debian",
            "pretty": "Debian GNU/Linux 12 (bookworm)",
            "arch": "x86_64",
        },
        "kernel": {"running": KERNEL, "next": KERNEL, "headers": {KERNEL: False}},
        "gpus": [copy.deepcopy(V100)],
        "volta": True,
        "nvidia": {"loaded": "", "open": False, "runfile": False, "library": ""},
        "secure_boot": False,
    }


@pytest.fixture
def judge(host):
    def judge(seen=(), **options):
        p = {
            "host": host,
            "driver": True,
            "install_tools": True,
            "expected_gpus": 0,
            "other_gpus": "refuse",
            "systems": SYSTEMS,
            "cards": CARDS,
        }
        return check.judge(p | options, SEEN | dict(seen))

    return judge


def test_a_right_host_has_no_problem(judge):
    assert judge() == []


def test_another_card_is_named_with_its_generation_and_place(host, judge):
    host["gpus"], host["volta"] = [T4], False
    (problem,) = judge()
    assert problem.startswith("this is a T4 (Turing) at 0000:5e:00.0, not a V100")
    assert "preflight_other_gpus: ignore" in problem
    host["gpus"].append(T4 | {"address": "0000:86:00.0"})
    assert judge()[0].startswith("this is 2 x T4 (Turing) at 0000:5e:00.0 and 0000:86:00.0, not")
    assert judge(other_gpus="ignore") == []


def test_a_mixed_host_names_the_stranger(host, judge):
    unnamed = T4 | {"address": "0000:86:00.0", "device": "1f82"}
    host["gpus"] = [V100, T4, unnamed]
    (problem,) = judge()
    assert (
        "beside 1 Volta there is a T4 (Turing) at 0000:5e:00.0, a Turing card of device" in problem
    )


def test_the_count_of_cards_is_named_with_what_is_there(host, judge):
    (problem,) = judge(expected_gpus=4)
    assert (
        "4 Volta cards are expected, and on the PCI bus there are 1 (0000:3b:00.0): reseat"
        in problem
    )
    assert problem.endswith("set preflight_expected_gpus to 1")
    host["gpus"], host["volta"] = [], False
    (problem,) = judge(expected_gpus=4)
    assert "there are 0 (none)" in problem
    assert judge(expected_gpus=0) == []


def test_a_lost_card_is_named_by_its_address(host, judge):
    host["gpus"][0]["lost"] = True
    (problem,) = judge(expected_gpus=1)
    assert problem.startswith("the GPU at 0000:3b:00.0, a Tesla V100 PCIe 32GB, has fallen off")


@pytest.mark.parametrize(
    ("system", "refused"),
    [
        ({"id": "ubuntu", "version": "22.04", "major": "22"}, False),
        ({"id": "ubuntu", "version": "23.10", "major": "23"}, True),
        ({"id": "almalinux", "version": "9.4", "major": "9"}, False),
        ({"id": "fedora", "version": "41", "major": "41"}, True),
        ({"arch": "ppc64le"}, True),
    ],
)
def test_other_systems_are_refused_by_name_where_the_driver_is_kept(host, judge, system, refused):
    host["os"] |= system | {"pretty": "That System"}
    problems = judge()
    assert bool(problems) == refused
    assert all("That System" in problem or "ppc64le" in problem for problem in problems)
    assert judge(driver=False) == []


def test_every_supported_system_is_of_a_known_family():
    clocks = yaml.safe_load((ROLE.parents[2] / "host/vars/main.yml").read_text())["host_clock"]
    assert {facts.FAMILIES[name] for name in SYSTEMS} == set(clocks)


OWNERS = {
    "runfile": ({}, {"runfile": True}, "nvidia-uninstall --silent"),
    "operator": ({"operator": True}, {}, "driver.enabled=false"),
    "ppa": ({"ppa": ["/etc/apt/sources.list.d/x.list"]}, {}, "add-apt-repository --remove"),
    "open": (
        {"packages": {"nvidia-kernel-open-dkms": "590.44.01-1"}},
        {},
        "apt-get purge nvidia-kernel-open-dkms",
    ),
    "two branches": (
        {
            "packages": {
                "nvidia-tesla-470-kernel-dkms": "470.256.02-1",
                "nvidia-kernel-dkms": "535.1-1",
            }
        },
        {},
        "branches 470 and 535",
    ),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_another_owner_of_the_driver_is_named_with_the_remedy(host, judge, owner):
    seen, nvidia, remedy = OWNERS[owner]
    host["nvidia"] |= nvidia
    (problem,) = judge(seen)
    assert remedy in problem
    assert judge(seen, driver=False) == []


def test_one_branch_in_several_packages_is_no_conflict(judge):
    packages = {
        "nvidia-dkms-580-server": "580.95.05-0ubuntu1",
        "linux-modules-nvidia-580-x": "580.95",
    }
    assert judge({"packages": packages}) == []


def test_secure_boot_is_a_problem_until_a_key_is_enrolled_or_the_module_loaded(host, judge):
    host["secure_boot"] = True
    (problem,) = judge()
    assert "Key was rejected by service" in problem
    assert "linux-modules-nvidia" not in problem
    assert judge({"key_enrolled": True}) == []
    host["os"] |= {"id": "ubuntu", "version": "24.04"}
    assert "linux-modules-nvidia-580-server-generic" in judge()[0]
    host["nvidia"]["loaded"] = "580.95.05"
    assert judge() == []
    host["nvidia"]["loaded"], host["secure_boot"] = "", None  # not told
    assert judge() == []


def test_headers_that_are_gone_from_the_mirror_are_named(judge):
    (problem,) = judge({"no_headers": [KERNEL]})
    assert f"the mirror has no linux-headers-{KERNEL}" in problem
    assert "apt-get install linux-image-amd64 linux-headers-amd64" in problem


def test_a_user_without_root_is_told_what_to_install(host, judge):
    host |= {
        "uid": 1000,
        "python": {"path": "/p", "version": "3.10", "supported": False, "package": "python3.11"},
        "missing_tools": ["Python 3.11"],
        "missing_packages": ["python3.11-venv"],
    }
    (problem,) = judge()
    assert "/p is Python 3.10, and a release needs" in problem
    assert "install python3.11-venv" in problem
    host["uid"] = 0
    assert judge() == []
    assert len(judge(install_tools=False)) == 1
    host["python"]["package"], host["missing_packages"] = "", []
    assert "install one of them" in judge()[0]


def test_every_problem_of_a_host_is_told_at_once(host, judge):
    host["nvidia"]["runfile"] = host["secure_boot"] = True
    host["manager_runs"] = False
    host["gpus"].append(T4)
    assert len(judge({"no_headers": [KERNEL]}, expected_gpus=2)) == 6


def test_module_packages_are_told_from_the_rest_and_from_the_half_installed(tmp_path):
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    rows = {
        "nvidia-kernel-dkms": ("install ok installed", "535.261.03-1"),
        "nvidia-tesla-470-kernel-dkms": ("hold ok installed", "470.256.02-1"),
        "nvidia-dkms-580-server": ("install ok half-configured", "580.95.05-1"),
        "nvidia-open-kernel-dkms": ("deinstall ok config-files", "590.1-1"),
        "nvidia-container-toolkit": ("install ok installed", "1.17.8-1"),
        "nvidia-smi": ("install ok installed", "535.261.03-1"),
    }
    status.write_text(
        "\n\n".join(
            f"Package: {name}\nStatus: {state}\nArchitecture: amd64\nVersion: {version}"
            for name, (state, version) in rows.items()
        )
    )
    assert check.module_packages(tmp_path) == {
        "nvidia-kernel-dkms": "535.261.03-1",
        "nvidia-tesla-470-kernel-dkms": "470.256.02-1",
    }


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-kernel-open-dkms",
        "nvidia-dkms-580-server-open",
        "linux-modules-nvidia-580-server-generic",
        "kmod-nvidia-latest-dkms",
        "kmod-nvidia-open-dkms",
        "akmod-nvidia",
    ],
)
def test_the_distributions_names_of_module_packages_are_known(name):
    assert check.MODULE_PACKAGE.match(name)


def test_a_ppa_is_found_unless_it_is_commented_out(tmp_path):
    lists = tmp_path / "etc/apt/sources.list.d"
    lists.mkdir(parents=True)
    (lists / "a.list").write_text("# deb https://ppa.launchpadcontent.net/graphics-drivers/ppa/x\n")
    (lists / "b.sources").write_text(
        "URIs: https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/\n"
    )
    assert check.ppa_files(tmp_path) == ["/etc/apt/sources.list.d/b.sources"]


def test_a_key_is_enrolled_where_shims_list_holds_it(tmp_path):
    key, shim = tmp_path / check.DKMS_KEYS[0], tmp_path / check.ENROLLED_KEYS.replace("*", "-605d")
    for path in (key, shim):
        path.parent.mkdir(parents=True)
    shim.write_bytes(b"\6\0\0\0list of other keys")
    assert not check.key_enrolled(tmp_path)
    key.write_bytes(b"a DER certificate")
    assert not check.key_enrolled(tmp_path)
    shim.write_bytes(b"\6\0\0\0head a DER certificate tail")
    assert check.key_enrolled(tmp_path)
