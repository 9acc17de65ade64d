"""The opt-in measurements: which Python makes them, whom they refuse to disturb, what they say."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from volta_doctor.facts import active, serve
from volta_doctor.facts.active import sm_clocks
from volta_doctor.facts.nvml import GpuFacts, GpuProcess, MemoryFacts, NvmlError, NvmlFacts
from volta_doctor.probe import CannotLook, Completed

GPUS = [GpuFacts(index=i, uuid=f"GPU-{i}", compute_processes=[]) for i in range(2)]
PYTHON = "/opt/volta/releases/abc/venv/bin/python"
RELEASE = {"/opt/volta/current": "-> releases/abc", PYTHON: ""}
ANSWERS = {
    "bandwidth": [{"hbm": 780.04, "to_gpu": 12.345, "to_host": 12.9}] * 2,
    "peers": {
        "copies": [{"source": 0, "target": 1, "wrong_bytes": 0}],
        "all_reduce": {"ranks": 2, "bytes": 8, "bus_gbs": 45.0, "wrong_elements": 0},
    },
    "triton_dot": [4e-4, "RuntimeError: no"],
}


@pytest.fixture
def measuring(host, monkeypatch):
    """Return the facts of a host whose scripts answer so, and the commands that were run."""
    probe = host(files=RELEASE)

    def collect(answers: dict[str, Any], gpus: list[GpuFacts] = GPUS):
        asked: list[list[str]] = []

        def run(*argv: str, limit: float) -> Completed:
            asked.append(list(argv))
            (script,) = (a.rsplit("/", 1)[1].removesuffix(".py") for a in argv if ".py" in a)
            answer = answers.get(script, Completed(1, "", "Traceback\nImportError: no torch", 0.1))
            if isinstance(answer, Completed):
                return answer
            return Completed(0, f"a warning\n{json.dumps(answer)}\n", "said beside it", 0.1)

        monkeypatch.setattr(probe, "run", run)
        monkeypatch.setattr(active, "collect_nvml", lambda: NvmlFacts(gpus=gpus))
        rows = {k: v for k, v in active.MEASUREMENTS.items() if k != "load"}
        monkeypatch.setattr(active, "MEASUREMENTS", rows)
        return active.collect(probe), asked

    return collect


def test_every_figure_comes_to_its_gpu(measuring):
    facts, asked = measuring(ANSWERS)
    assert facts.python == PYTHON
    assert facts.gpus[0] == active.ActiveGpu(
        uuid="GPU-0", hbm_gbs=780.0, to_gpu_gbs=12.35, to_host_gbs=12.9, dot_error=4e-4
    )
    assert facts.gpus[1].dot_error == "RuntimeError: no"
    assert (facts.all_reduce.bus_gbs, facts.dot_output, facts.problems) == (
        45.0,
        "said beside it",
        {},
    )
    assert asked[0][:5] == [
        "env",
        "-u",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        PYTHON,
    ]


def test_a_script_that_dies_takes_no_other_down(measuring):
    facts, _ = measuring(ANSWERS | {"peers": Completed(None, "", "", 120.0)})
    assert facts.problems == {"peers": f"peers.py, run by {PYTHON}, failed: no answer within 120 s"}
    assert facts.gpus[0].hbm_gbs == 780.0
    facts, _ = measuring({})
    text = f"bandwidth.py, run by {PYTHON}, failed: ImportError: no torch"
    assert facts.problems["bandwidth"] == text


def test_figures_for_other_cards_than_nvml_shows_are_no_figures(measuring):
    facts, _ = measuring(ANSWERS | {"bandwidth": ANSWERS["bandwidth"][:1]})
    assert facts.problems == {"bandwidth": "bandwidth.py saw 1 GPUs, NVML 2"}
    facts, _ = measuring(ANSWERS | {"triton_dot": "nonsense"})
    assert "printed no figures" in facts.problems["triton_dot"]


def test_it_refuses_beside_a_running_server(measuring):
    busy = GpuFacts(index=1, uuid="GPU-1", compute_processes=[GpuProcess(pid=2311)])
    with pytest.raises(CannotLook, match=r"refused: GPU 1 is in use \(pid 2311\)"):
        measuring(ANSWERS, gpus=[GPUS[0], busy])


def test_it_refuses_beside_what_it_cannot_see(measuring):
    used = GpuFacts(index=0, compute_processes=[], memory=MemoryFacts(used=501 << 20))
    with pytest.raises(CannotLook, match="refused: 501 MiB of GPU 0 are in use"):
        measuring(ANSWERS, gpus=[used])
    idle = GpuFacts(index=0, compute_processes=[], memory=MemoryFacts(used=500 << 20))
    assert measuring({}, gpus=[idle])[0].python == PYTHON


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_it_refuses_beside_a_server_that_still_loads_its_model(measuring, monkeypatch, device):
    server = serve.Server(name="x.service", engine="vllm", source="x", pids=[7])
    server = structs.replace(server, flags=serve.Flags(device=device))
    found = serve.ServeFacts(servers=[server])
    monkeypatch.setattr(serve, "find", lambda _probe: found)
    if device == "cpu":
        assert measuring({})[0].python == PYTHON
        return
    with pytest.raises(CannotLook, match=r"refused: x.service runs \(pid 7\)"):
        measuring({})


def test_a_release_without_a_python_is_no_fault_of_the_doctor(host):
    with pytest.raises(CannotLook, match="No such file"):
        active.command(host(), PYTHON, "load")


def test_it_refuses_where_it_cannot_tell_who_uses_a_gpu(measuring):
    hidden = GpuFacts(index=0, uuid="GPU-0", compute_processes=NvmlError(999, "Unknown Error"))
    with pytest.raises(CannotLook, match="who uses GPU 0"):
        measuring(ANSWERS, gpus=[hidden])


def test_root_does_not_run_what_another_user_can_change(host, monkeypatch):
    probe = host(files={PYTHON: ""})
    real = Path.stat
    monkeypatch.setattr(
        Path,
        "stat",
        lambda path, **how: os.stat_result([*real(path, **how)[:4], 1000, 1001, *[0] * 4]),
    )
    argv = active.command(probe, PYTHON, "load", "30")
    assert argv[:3] == ["setpriv", "--reuid=1000", "--regid=1001"]
    assert argv[-2].endswith("active/load.py") and argv[-1] == "30"


def test_means_take_only_the_settled_time():
    samples = [
        sm_clocks.Sample(t, [mhz, None])
        for t, mhz in ((0.0, 135), (5.0, 1530), (10.0, 1400), (20.0, 1300), (21.0, 135))
    ]
    assert sm_clocks.means(samples, 9.0, 20.5) == [1350.0, None]
    assert sm_clocks.means(samples, 30.0, 40.0) == []
