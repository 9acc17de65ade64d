"""Remedies that the doctor can take itself: what they do, and that they mend the finding."""

import os

import pytest
from click.testing import CliRunner
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.cli import cli
from volta_doctor.facts import ext_cache
from volta_doctor.facts.serve import Server
from volta_doctor.judge import examine
from volta_doctor.profile import detect

DROP_IN = "/etc/systemd/system/volta-serve.service.d/"
UNIT = {"name": "volta-serve.service", "load_state": "loaded", "active_state": "active"}


def judged(facts, check_id):
    return [f for f in examine(facts, checks()[check_id], detect(facts)) if f.status != "ok"]


@pytest.mark.parametrize(
    ("check_id", "old"), [("ext-cache", "x.so"), ("ext-lock", "lock"), ("ext-cache", "tag")]
)
def test_what_is_set_aside_is_found_no_more_and_comes_back(
    host, serving, snapshot_with, check_id, old
):
    server = Server(name="volta-serve.service", engine="vllm", source="", prefix="/v", home="/u")
    serving(server)
    root = "/u/.cache/torch_extensions"
    tag = "py39_cu118" if old == "tag" else "py311_cu128"
    gates = f"{root}/{tag}/gates"
    probe = host(files={f"{gates}/{name}": "" for name in ("x.so", "lock", "build.ninja")})
    probe.time = lambda: 1_796_040_000.0
    if old != "tag":
        os.utime(probe.path(f"{gates}/{old}"), (1000, 1000))

    def found():
        facts = snapshot_with({}).facts
        data = ext_cache.find(probe)
        section = structs.replace(facts.ext_cache, data=data)
        return [
            finding
            for finding in judged(structs.replace(facts, ext_cache=section), check_id)
            if finding.status in ("fail", "warn")
        ]

    def run(argv):
        here = str(probe.path("/")).rstrip("/")
        words = [
            word.replace("=/", f"={here}/") if word[0] == "-" else word.replace("/u/", f"{here}/u/")
            for word in argv[1:]
        ]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output

    (finding,) = found()
    (step,) = finding.remedy.steps
    run(step.run)
    assert found() == []
    run(step.undo)
    assert found() == [finding]


def test_a_cache_in_a_container_and_one_behind_a_link_are_for_a_person(snapshot_with):
    for path, inode in (("/proc/7/root/c/py39_cpu", 5), ("/c/py39_cpu", None)):
        change = {"ext_cache": {"caches": {0: {"path": path, "tag": "py39_cpu", "inode": inode}}}}
        (finding,) = judged(snapshot_with(change).facts, "ext-cache")
        assert (finding.status, finding.remedy.steps) == ("warn", [])


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
