"""What describes the GPUs to containers."""

import pytest
from ansible_modules import load

cdi = load("volta_cdi")

DOCKER = {"docker": {"program": "/usr/bin/dockerd", "file": "/etc/docker/daemon.json"}}
SPEC = "/etc/cdi/nvidia.yaml"


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def test_a_host_without_a_driver_and_runtimes(tmp_path):
    assert cdi.look(SPEC, DOCKER, tmp_path) == {"driver": "", "described": "", "lacking": []}


@pytest.mark.parametrize(("settings", "lacking"), [("{}", ["docker"]), ('{"nvidia": 1}', [])])
def test_an_old_description_and_a_runtime(tmp_path, write, settings, lacking):
    write(
        "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05 "
    )
    write("etc/cdi/nvidia.yaml", "hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06\n")
    write("usr/bin/dockerd", "")
    write("etc/docker/daemon.json", settings)
    found = cdi.look(SPEC, DOCKER, tmp_path)
    assert found == {"driver": "580.95.05", "described": "580.65.06", "lacking": lacking}
