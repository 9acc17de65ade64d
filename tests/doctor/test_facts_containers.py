"""The container runtimes, their cgroup drivers and what names the GPUs to them."""

import json

import pytest

from volta_doctor.facts import containers
from volta_doctor.facts.containers import CgroupDriver

CTK = "NVIDIA Container Toolkit CLI version 1.14.3\ncommit: 53b24618a542\n"
COMMANDS = {"docker": "", "containerd": "", "nvidia-ctk --version": CTK}
UNIFIED = {"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory\n"}
SYSTEMD = UNIFIED | {"/run/systemd/system": None}
NODES = {f"/dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")}


def docker(facts):
    return next(driver for driver in facts.cgroup_drivers if driver.runtime == "docker")


def test_a_host_with_docker_and_the_toolkit(host):
    settings = {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "x", "args": []}}}
    facts = containers.collect(
        host(
            files=SYSTEMD
            | NODES
            | {"/etc/docker/daemon.json": json.dumps(settings), "/dev/char/195:0": "-> ../nvidia0"},
            commands=COMMANDS,
        )
    )
    assert facts.runtimes == ["docker", "containerd"]
    assert (facts.toolkit_version, facts.ctk_path) == ("1.14.3", "/usr/bin/nvidia-ctk")
    assert (facts.docker_runtimes, facts.docker_default_runtime) == (["nvidia"], "nvidia")
    assert (docker(facts).name, docker(facts).source) == (
        "systemd",
        "the default with cgroup v2 and systemd",
    )
    assert facts.unlinked == ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"]
    assert facts.cdi_specs == []


@pytest.mark.parametrize(
    ("files", "driver"),
    [
        (SYSTEMD, "systemd"),
        (UNIFIED, "cgroupfs"),
        ({"/run/systemd/system": None}, "cgroupfs"),
        (
            SYSTEMD
            | {"/etc/docker/daemon.json": '{"exec-opts": ["native.cgroupdriver=cgroupfs"]}'},
            "cgroupfs",
        ),
        (
            {"/etc/docker/daemon.json": '{"exec-opts": ["native.cgroupdriver=systemd"]}'},
            "systemd",
        ),
        ({"/etc/docker/daemon.json": "\n"}, "cgroupfs"),
    ],
)
def test_docker_s_cgroup_driver(host, files, driver):
    assert docker(containers.collect(host(files=files, commands=COMMANDS))).name == driver


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_broken_settings_of_docker_are_told(host, text):
    facts = containers.collect(host(files={"/etc/docker/daemon.json": text}, commands=COMMANDS))
    assert "/etc/docker/daemon.json: not" in docker(facts).problem


def test_containerd_for_kubernetes(host):
    config = "[plugins.x.runtimes.runc.options]\n  SystemdCgroup = true\n"
    facts = containers.collect(
        host(files={"/etc/containerd/config.toml": config}, commands={"containerd": ""})
    )
    assert facts.cgroup_drivers == [
        CgroupDriver(runtime="containerd", name="systemd", source="/etc/containerd/config.toml")
    ]


def test_cdi_specifications_of_nvidia_alone(host):
    files = {
        "/var/run/cdi/nvidia.yaml": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n",
        "/etc/cdi/nvidia.json": '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}',
        "/etc/cdi/fpga.yaml": "kind: intel.com/fpga\n",
        "/etc/cdi/README": "kind: nvidia.com/gpu\n",
    }
    facts = containers.collect(host(files=files))
    assert facts.cdi_specs == ["/etc/cdi/nvidia.json", "/var/run/cdi/nvidia.yaml"]


def test_neither_runtime_nor_toolkit(host):
    assert containers.collect(host()) == containers.ContainersFacts(unlinked=[])


def test_a_toolkit_that_does_not_answer(host):
    facts = containers.collect(host(commands={"nvidia-ctk --version": (127, "", "no libc")}))
    assert (facts.toolkit_version, facts.toolkit_problem) == (None, "nvidia-ctk: no libc")
    facts = containers.collect(host(commands={"nvidia-container-cli": ""}))
    assert "comes without nvidia-ctk" in facts.toolkit_problem
