"""What the driver role would write and install on each distribution, rendered by Ansible."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
RENDER = """
- ansible.builtin.copy:
    content: "{{ rendered | to_json }}"
    dest: "{{ out }}/{{ inventory_hostname }}.json"
  vars:
    rendered:
      files: "{{ driver_contents }}"
      packages: "{{ driver_packages }}"
      key: "{{ driver_key_url }}"
"""
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars:
    preflight_host:
      os: {id: "{{ os }}", major: "{{ major }}", family: "{{ family }}"}
      kernel: {running: k1, next: k2}
  tasks:
    - ansible.builtin.include_role: {name: driver, tasks_from: render.yml}
"""
HOSTS = """
debian-12 os=debian major="'12'" family=debian
debian-13 os=debian major="'13'" family=debian
ubuntu-22 os=ubuntu major="'22'" family=debian
ubuntu-24 os=ubuntu major="'24'" family=debian driver_source=distribution
rocky-8 os=rocky major="'8'" family=redhat
rhel-9 os=rhel major="'9'" family=redhat
mirror os=debian major="'12'" family=debian driver_source=mirror driver_mirror_url=file:///srv/nvidia/
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    out = tmp_path_factory.mktemp("tables")
    shutil.copytree(PLAYBOOKS / "roles/driver", out / "roles/driver")  # links become files
    files = {"play.yml": PLAY, "roles/driver/tasks/render.yml": RENDER, "hosts": HOSTS}
    for name, text in files.items():
        (out / name).write_text(text)
    environment = {
        **os.environ,
        "ANSIBLE_HOME": str(out / "home"),
        "ANSIBLE_ROLES_PATH": str(out / "roles"),
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
    }
    command = [Path(sys.executable).parent / "ansible-playbook", "-i", out / "hosts"]
    python = f"ansible_python_interpreter={sys.executable}"
    command += ["-e", f"out={out}", "-e", python, out / "play.yml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}


@pytest.mark.parametrize(
    ("host", "path", "key"),
    [
        ("debian-12", "debian12", "3bf863cc.pub"),
        ("debian-13", "debian13", "8793F200.pub"),
        ("ubuntu-22", "ubuntu2204", "3bf863cc.pub"),
        ("rocky-8", "rhel8", "D42D0685.pub"),
        ("rhel-9", "rhel9", "D42D0685.pub"),
    ],
)
def test_each_distribution_has_its_repository_and_key(rendered, host, path, key):
    url = f"https://developer.download.nvidia.com/compute/cuda/repos/{path}/x86_64"
    assert rendered[host]["key"] == f"{url}/{key}"
    [source] = [text for name, text in rendered[host]["files"].items() if "volta-nvidia" in name]
    assert f"{url}/\n" in source
    assert "trusted" not in source.lower().replace("trusted by", "")
    assert "Signed-By: /etc/apt/keyrings/" in source or "gpgcheck=1\ngpgkey=file:///etc" in source


def test_a_mirror_is_used_whole(rendered):
    assert rendered["mirror"]["key"] == "file:///srv/nvidia/3bf863cc.pub"
    text = rendered["mirror"]["files"]["/etc/apt/sources.list.d/volta-nvidia.sources"]
    assert "URIs: file:///srv/nvidia/\n" in text


def test_the_distributions_own_packages_need_no_repository(rendered):
    assert not [name for name in rendered["ubuntu-24"]["files"] if "volta-nvidia" in name]
    assert rendered["ubuntu-24"]["packages"][0] == "nvidia-dkms-580-server"


def test_the_branch_is_in_the_name_or_in_the_pin(rendered):
    assert rendered["ubuntu-22"]["packages"][0] == "nvidia-dkms-580"
    pin = rendered["debian-12"]["files"]["/etc/apt/preferences.d/volta-driver.pref"]
    assert "Pin: version @VERSION@-*\nPin-Priority: 1001\n" in pin
    assert "Pin: version 580.*\n" in pin
    module = rendered["rhel-9"]["files"]["/etc/dnf/modules.d/nvidia-driver.module"]
    assert "stream=580-dkms\n" in module


@pytest.mark.parametrize("host", ["debian-12", "debian-13", "ubuntu-22", "rocky-8", "rhel-9"])
def test_no_open_module_and_no_package_that_jumps_is_asked_for(rendered, host):
    names = rendered[host]["packages"]
    assert not [n for n in names if "open" in n or n.startswith(("cuda-drivers", "cuda"))]
    assert "blacklist nouveau\n" in rendered[host]["files"]["/etc/modprobe.d/volta-driver.conf"]
