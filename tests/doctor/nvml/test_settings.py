"""Settings of the fake GPUs, made by real pynvml."""

import subprocess
import sys
from pathlib import Path

import pytest

HOST = "v100-sxm2-16gb-x8"


def test_a_change_of_ecc_mode_waits_for_the_next_boot(fake_host):
    host = fake_host(HOST)
    host.python("nvml.nvmlDeviceSetEccMode(gpu, 0)")
    ecc = host.collect().gpus[0].ecc
    assert (ecc.current, ecc.pending) == (True, False)
    host.reboot()
    first, second = (gpu.ecc for gpu in host.collect().gpus[:2])
    assert (first.current, first.pending) == (False, False)
    assert (second.current, second.pending) == (True, True)


def test_other_settings_hold_until_the_next_boot(fake_host):
    host = fake_host(HOST)
    before = host.collect().gpus[0]
    host.python(
        "nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_PROHIBITED)\n"
        "nvml.nvmlDeviceSetPowerManagementLimit(gpu, 200000)\n"
        "nvml.nvmlDeviceSetApplicationsClocks(gpu, 877, 1530)\n"
    )
    gpu = host.collect().gpus[0]
    assert gpu.compute_mode == "prohibited"
    assert (gpu.power.limit_mw, gpu.power.enforced_mw) == (200000, 200000)
    assert (gpu.application_clocks.memory, gpu.application_clocks.graphics) == (877, 1530)
    host.reboot()
    after = host.collect().gpus[0]
    assert (after.power, after.application_clocks) == (before.power, before.application_clocks)
    assert (after.compute_mode, after.persistence) == ("default", False)


def test_application_clocks_can_be_reset(fake_host):
    host = fake_host(HOST)
    before = host.collect()
    host.python(
        "nvml.nvmlDeviceSetApplicationsClocks(gpu, 877, 1530)\n"
        "nvml.nvmlDeviceResetApplicationsClocks(gpu)\n"
    )
    assert host.collect() == before


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("nvml.nvmlDeviceSetPowerManagementLimit(gpu, 149999)", 2),
        ("nvml.nvmlDeviceSetApplicationsClocks(gpu, 877, 1531)", 2),
        ("nvml.nvmlDeviceSetComputeMode(gpu, 9)", 2),
        ("nvml.nvmlDeviceGetHandleByIndex(8)", 2),
        ("nvml.nvmlDeviceGetNvLinkState(gpu, 6)", 2),
    ],
)
def test_what_a_card_cannot_do_is_refused(fake_host, call: str, code: int):
    host = fake_host(HOST)
    before = host.collect()
    refused = f"try: {call}\nexcept nvml.NVMLError as error: print(error.value)"
    assert host.python(refused) == str(code)
    assert host.collect() == before


def test_a_shell_on_a_fake_host(fakegpu):
    name = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    command = [
        sys.executable,
        Path(fakegpu.__file__),
        "run",
        HOST,
        "--",
        sys.executable,
        "-c",
        name,
    ]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"8\n"
