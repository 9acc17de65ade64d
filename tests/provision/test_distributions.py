"""A check of each distribution, from recorded facts: what its roles would fetch, by which names.

The modules that look at a host answer from the record; what Ansible renders and decides is real.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded/hosts.yml"
DISTRIBUTIONS = list(yaml.safe_load(RECORDED.read_text())["all"]["hosts"])
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  roles: [driver, cuda, container]
"""
# What each module answers on a host without a driver; P are its parameters.
ANSWERS = {
    "volta_driver": """dict(
        todo={"packages": "to install: " + ", ".join(P["packages"])
              + "; headers: " + P["headers"] + "; pin: " + P["pin"]},
        problems=[], install=[], stale={}, hold=[], broken=[], wanted="")""",
    "volta_kmod": "dict(todo={}, unbuilt=[], dkms='', initramfs=[], loaded='', unload=[],"
    " nouveau=False, reboot=[])",
    "volta_key": "dict(diff={'after': P['url'] + ' ' + P['fingerprint']})",
    "volta_toolkit": "dict(installed=False, version='', problems=[])",
    "volta_cdi": "dict(driver='580.95.05', described='', lacking=['docker'])",
}
MODULE = """
import json, sys
from ansible.module_utils.basic import AnsibleModule, _load_params
names = [name for name in _load_params() if not name.startswith("_ansible")]
module = AnsibleModule({name: {"type": "raw"} for name in names}, supports_check_mode=True)
P = module.params
module.exit_json(**{"changed": False, **ANSWER})
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Return what a check says of each host, for a source of the driver and one of the toolkit."""
    place = tmp_path_factory.mktemp("distributions")
    (place / "library").mkdir()
    for name, answer in ANSWERS.items():
        (place / f"library/{name}.py").write_text(MODULE.replace("ANSWER", answer))
    (place / "play.yml").write_text(PLAY)

    def run(**variables):
        variables |= {"cuda_enabled": "true", "container_enabled": True}
        variables["ansible_python_interpreter"] = sys.executable
        playbook = Path(sys.executable).with_name("ansible-playbook")
        options = ["--check", "--diff", "-v", "-i", RECORDED, "-e", json.dumps(variables)]
        done = subprocess.run(
            [playbook, *options, place / "play.yml"],
            env={
                **os.environ,
                "ANSIBLE_HOME": str(place / "home"),
                "ANSIBLE_ROLES_PATH": str(REPO / "playbooks/roles"),
                "ANSIBLE_LIBRARY": str(place / "library"),
                "ANSIBLE_CONFIG": str(REPO / "playbooks/ansible.cfg"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        said = dict.fromkeys(DISTRIBUTIONS, "")
        for line in re.split(r"\n(?=\w+: \[)", done.stdout):
            if found := re.match(r"\w+: \[([\w.-]+)\]", line):
                said[found[1]] += " ".join(line.split()) + "\n"
        return done, said

    return run


@pytest.fixture(scope="module")
def by_vendor(checked):
    return checked()


def test_a_check_runs_through_on_every_distribution(by_vendor):
    done, _said = by_vendor
    assert done.returncode == 0, done.stdout + done.stderr
    recap = done.stdout.rpartition("PLAY RECAP")[2]
    for name in DISTRIBUTIONS:
        assert re.search(rf"^{re.escape(name)} .* failed=0 ", recap, re.MULTILINE), recap


APT = ("headers: linux-headers-", "/etc/apt/preferences.d/volta-driver.pref")
DNF = ("headers: kernel-devel-", "/etc/dnf/modules.d/nvidia-driver.module")
NAMES = {
    "debian-12": ("nvidia-kernel-dkms, nvidia-driver-cuda", *APT, "cuda-cudart-dev-12-9"),
    "debian-13": ("nvidia-kernel-dkms, nvidia-driver-cuda", *APT, "cuda-cudart-dev-12-9"),
    "ubuntu-22.04": ("nvidia-dkms-580, libnvidia-compute-580", *APT, "cuda-cudart-dev-12-9"),
    "ubuntu-24.04": ("nvidia-dkms-580, libnvidia-compute-580", *APT, "cuda-cudart-dev-12-9"),
    "rocky-8": ("kmod-nvidia-latest-dkms, nvidia-driver-cuda", *DNF, "cuda-cudart-devel-12-9"),
    "rocky-9": ("kmod-nvidia-latest-dkms, nvidia-driver-cuda", *DNF, "cuda-cudart-devel-12-9"),
    "rhel-9": ("kmod-nvidia-latest-dkms, nvidia-driver-cuda", *DNF, "cuda-cudart-devel-12-9"),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_names_of_each_distribution(by_vendor, name):
    said = by_vendor[1][name]
    for words in (*NAMES[name], "tell docker"):
        assert words in said


def test_the_distributions_own_driver_and_toolkit(checked):
    done, said = checked(driver_source="distribution", driver_branch=535)
    assert "nvidia-kernel-dkms, nvidia-smi" in said["debian-12"]
    assert "A run would install nvidia-cuda-toolkit" in said["debian-12"]
    assert "nvidia-dkms-535-server" in said["ubuntu-22.04"]
    assert "Rocky Linux 9.6 has no NVIDIA driver of its own" in said["rocky-9"], done.stdout
    assert "failed=0" in done.stdout.rpartition("debian-12")[2].splitlines()[0]


def test_a_toolkit_without_volta_is_refused(checked):
    done, said = checked(cuda_version="13.0")
    assert done.returncode != 0
    assert "cuda_version: 13.0 makes no code for Volta" in said["debian-12"]
