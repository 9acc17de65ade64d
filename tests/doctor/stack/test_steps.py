"""Remedies that the doctor can take itself: what they do, and that they mend the finding."""

import subprocess

import pytest

from volta_doctor.catalog import checks
from volta_doctor.facts import ext_cache
from volta_doctor.facts.serve import Server
from volta_doctor.judge import examine
from volta_doctor.profile import detect

CACHE = "/home/u/.cache/torch_extensions/py311_cu128"
DROP_IN = "/etc/systemd/system/volta-serve.service.d/"
UNIT = {"name": "volta-serve.service", "load_state": "loaded", "active_state": "active"}


def judged(facts, check_id):
    return [f for f in examine(facts, checks()[check_id], detect(facts)) if f.status != "ok"]


@pytest.mark.parametrize(
    ("check_id", "extension"),
    [("ext-cache", {"built": 1000}), ("ext-lock", {"built": 1795950000, "locked": 1000})],
)
def test_what_is_moved_aside_is_found_no_more_and_comes_back(
    host, serving, snapshot_with, check_id, extension
):
    serving(
        Server(name="volta-serve.service", engine="vllm", source="", prefix="/v", home="/home/u")
    )
    probe = host(files={f"{CACHE}/gates/gates.so": "", f"{CACHE}/gates/lock": ""})
    facts = snapshot_with(
        {
            "ext_cache": {
                "caches": [
                    {
                        "path": CACHE,
                        "tag": "py311_cu128",
                        "used_by": ["volta-serve.service"],
                        "extensions": [{"name": "gates", **extension}],
                    }
                ]
            }
        }
    ).facts
    (finding,) = judged(facts, check_id)
    (step,) = finding.remedy.steps

    def run(argv):
        words = [str(probe.path(word)) if word.startswith("/") else word for word in argv]
        subprocess.run(words, check=True)

    def kept():
        (cache,) = ext_cache.find(probe).caches
        return [(e.name, e.locked is not None) for e in cache.extensions]

    assert kept() == [("gates", True)]
    run(step.run)
    assert kept() == ([("gates", False)] if check_id == "ext-lock" else [])
    run(step.undo)
    assert kept() == [("gates", True)]


def test_a_server_is_pointed_to_the_right_toolkit(snapshot_with):
    facts = snapshot_with(
        {
            "units": {"units": [UNIT]},
            "toolchain": {
                "compilers": {
                    1: {"path": "/usr/local/cuda-11.8/bin/nvcc", "real": "", "release": "11.8"},
                    2: {"path": "/usr/local/cuda-13.0/bin/nvcc", "real": "", "release": "13.0"},
                },
                "builds": {
                    0: {"nvcc": {"release": "13.0"}, "beside": []},
                    1: {"nvcc": {"release": "13.0"}, "beside": []},
                },
            },
        }
    ).facts
    shell, server = judged(facts, "nvcc")
    assert shell.remedy.steps == []  # whose variables would it change?
    write = server.remedy.steps[0]
    assert write.write.startswith(DROP_IN)
    assert write.content == "[Service]\nEnvironment=CUDA_HOME=/usr/local/cuda-12.6\n"


def test_triton_is_pointed_to_a_ptxas_that_is_there(snapshot_with):
    change = {
        "units": {"units": [UNIT]},
        "toolchain": {"triton": {0: {"tool": {"release": "13.0"}}}},
    }
    (finding,) = judged(snapshot_with(change).facts, "ptxas-mismatch")
    assert finding.remedy.steps[0].content == (
        "[Service]\nEnvironment=TRITON_PTXAS_PATH=/usr/local/cuda-12.6/bin/ptxas\n"
    )
    change["toolchain"]["compilers"] = []
    (finding,) = judged(snapshot_with(change).facts, "ptxas-mismatch")
    assert finding.remedy.steps == []
