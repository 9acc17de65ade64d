"""The collector, through real pynvml, on hosts in every state."""

import itertools
import json
import time
from types import ModuleType
from typing import Any

import msgspec
import pytest

from volta_doctor.facts.nvml import NvmlError, collect, errors, value

SNAPSHOTS = [
    "v100-sxm2-16gb-x2",
    "v100-sxm2-32gb-x2",
    "dgx-1",
    "dgx-2",
    "v100-sxm2-16gb-x8",
    "v100-pcie-32gb-x2",
    "ecc-pending",
    "mixed-vbios",
    "gpu-lost",
    "driver-535",
    "mismatch",
]


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_collects_what_the_host_is(fake_host, fakegpu: ModuleType, snapshot: str):
    facts = fake_host(snapshot).collect()
    assert json.loads(msgspec.json.encode(facts)) == fakegpu.load(snapshot).nvml


def renumber(facts: Any, numbers: itertools.count) -> Any:
    """The facts with a number of its own in place of each."""
    if isinstance(facts, dict):
        return {
            name: item if name in ("index", "error") else renumber(item, numbers)
            for name, item in facts.items()
        }
    if isinstance(facts, list):
        return [renumber(item, numbers) for item in facts]
    return next(numbers) if type(facts) is int else facts


@pytest.mark.parametrize("snapshot", ["v100-sxm2-16gb-x8", "v100-pcie-32gb-x2"])
def test_no_reading_is_taken_for_another(fake_host, fakegpu: ModuleType, snapshot: str):
    gpus = renumber(fakegpu.load(snapshot).nvml["gpus"], itertools.count(1000))
    facts = fake_host(snapshot, gpus=gpus).collect()
    assert json.loads(msgspec.json.encode(facts.gpus)) == gpus


@pytest.mark.parametrize("code", [9, 15, 18, 999])
def test_a_refused_init_is_recorded(fake_host, code: int):
    host = fake_host("v100-pcie-32gb-x2", init_error={"error": code})
    facts = host.collect()
    assert facts.init_error and facts.init_error.error == code
    assert facts.nvml_version == "13.580.95.05"
    assert isinstance(facts.driver_version, NvmlError)
    assert facts.gpus == []


def test_without_a_library_code_12_is_recorded(run_collector, broken_library):
    facts = run_collector(broken_library)
    assert facts.init_error == NvmlError(12, "NVML Shared Library Not Found")
    assert value(facts.driver_version) is None
    assert facts.gpus == []


def test_a_lost_gpu_does_not_hide_the_others(fake_host):
    facts = fake_host("gpu-lost").collect()
    lost = {path: error.error for path, error in errors(facts) if error.error in (15, 16)}
    assert lost == {"gpus.3.handle_error": 15, "gpus.5.temperature.gpu": 16}
    assert [gpu.index for gpu in facts.gpus] == list(range(8))
    assert facts.gpus[4].uuid == "GPU-00000000-0000-0000-0000-000000000005"


@pytest.mark.parametrize(
    ("omit", "path"),
    [
        (["nvmlDeviceGetEccMode"], "gpus.0.ecc.current"),
        (["nvmlDeviceGetFieldValues"], "gpus.0.temperature.memory"),
        (
            [f"nvmlDeviceGetCurrentClocks{word}Reasons" for word in ("Event", "Throttle")],
            "gpus.0.event_reasons",
        ),
        (
            [f"nvmlDeviceGetComputeRunningProcesses_v{n}" for n in (2, 3)],
            "gpus.0.compute_processes",
        ),
    ],
)
def test_a_function_that_the_driver_lacks_is_recorded(fake_host, omit: list[str], path: str):
    facts = fake_host("v100-pcie-32gb-x2", omit=omit).collect()
    assert dict(errors(facts))[path] == NvmlError(13, "Function Not Found")


def test_older_functions_serve_where_the_newer_are_missing(fake_host):
    newer = [
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetRetiredPages_v2",
    ]
    facts = fake_host("v100-pcie-32gb-x2", omit=newer).collect()
    gpu = facts.gpus[1]
    assert {error.error for _, error in errors(facts)} == {3}
    assert [(process.pid, process.memory) for process in gpu.compute_processes] == [
        (4242, 20470 << 20),
        (4243, None),
    ]
    assert gpu.event_reasons == 1
    assert (gpu.memory.reserved, gpu.memory.used) == (None, (20480 + 268) << 20)
    assert [(p.address, p.timestamp) for p in gpu.retired_pages.double_bit] == [(0x3D0010000, None)]


def test_a_serial_that_is_not_text_is_recorded(fake_host):
    host = fake_host("v100-pcie-32gb-x2")
    host.state.write_bytes(host.state.read_bytes().replace(b"serial=0320", b"serial=\xff\xfe20"))
    serial = host.collect().gpus[0].serial
    assert isinstance(serial, NvmlError) and serial.error == 999


def test_nvml_is_shut_down_afterwards(fake_host):
    code = """
from volta_doctor.facts.nvml import collect
nvml.nvmlShutdown()
collect()
try:
    nvml.nvmlDeviceGetCount()
except nvml.NVMLError as error:
    print(error.value)
"""
    assert fake_host("v100-pcie-32gb-x2").python(code) == "1"


@pytest.mark.gpu
def test_a_real_gpu_answers():
    start = time.monotonic()
    facts = collect()
    seconds = time.monotonic() - start
    if facts.init_error:
        pytest.skip(f"no NVIDIA driver: {facts.init_error.text}")
    gpu = facts.gpus[0]
    assert len(facts.gpus) == facts.device_count
    assert str(gpu.uuid).startswith("GPU-")
    assert value(gpu.memory.total)
    assert value(gpu.temperature.gpu)
    assert isinstance(gpu.compute_processes, list)
    # A data-centre card may not have a feature; it must not lack a function or refuse arguments.
    assert {error.error for _, error in errors(facts)} <= {3}, dict(errors(facts))
    assert seconds < 5
