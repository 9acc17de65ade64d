"""What is read from NVML: one row per reading, field and call.

A row may fill several fields (`"current pending"`) from a call that returns as many values. To
add a reading, add its field to the facts and its row here.
"""

from typing import Any

import msgspec
import pynvml as nvml

from volta_doctor.facts.nvml import GpuFacts, NvLinkFacts, NvmlError, NvmlFacts, Reading, value
from volta_doctor.facts.nvml.calls import (
    COMPUTE_MODES,
    DRIVER_MODELS,
    Call,
    Rows,
    attempt,
    either,
    field_value,
    flag,
    flags,
    link_speed,
    memory,
    memory_v1,
    named,
    of,
    pci,
    processes,
    read,
    retired_pages,
    utilization,
    utilization_samples,
    validate_inforom,
)

CORRECTED = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
UNCORRECTED = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
VOLATILE = nvml.NVML_VOLATILE_ECC
AGGREGATE = nvml.NVML_AGGREGATE_ECC

NVLINK: Rows = {
    "active": flag(nvml.nvmlDeviceGetNvLinkState),
    "version": nvml.nvmlDeviceGetNvLinkVersion,
    "speed_mbps": link_speed,
    "replays": of(nvml.nvmlDeviceGetNvLinkErrorCounter, nvml.NVML_NVLINK_ERROR_DL_REPLAY),
    "recoveries": of(nvml.nvmlDeviceGetNvLinkErrorCounter, nvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    "crc_flit": of(nvml.nvmlDeviceGetNvLinkErrorCounter, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    "crc_data": of(nvml.nvmlDeviceGetNvLinkErrorCounter, nvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
}


def nvlinks(gpu: Any) -> Reading[list[NvLinkFacts]]:
    """The card's links: NVML tells their number only by refusing the one after the last."""
    links: list[NvLinkFacts] = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        link = read(NvLinkFacts, NVLINK, gpu, number)
        if isinstance(link.active, NvmlError):
            if link.active.error == nvml.NVML_ERROR_INVALID_ARGUMENT:
                break
            if number == 0:
                return link.active
        links.append(link)
    return links


def clocks(call: Call) -> Rows:
    """The four clock domains of `call`."""
    return {
        "graphics": of(call, nvml.NVML_CLOCK_GRAPHICS),
        "sm": of(call, nvml.NVML_CLOCK_SM),
        "memory": of(call, nvml.NVML_CLOCK_MEM),
        "video": of(call, nvml.NVML_CLOCK_VIDEO),
    }


GPU: Rows = {
    "uuid": nvml.nvmlDeviceGetUUID,
    "name": nvml.nvmlDeviceGetName,
    "serial": nvml.nvmlDeviceGetSerial,
    "part_number": nvml.nvmlDeviceGetBoardPartNumber,
    "vbios": nvml.nvmlDeviceGetVbiosVersion,
    "minor_number": nvml.nvmlDeviceGetMinorNumber,
    "compute_capability": lambda gpu: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
    "persistence": flag(nvml.nvmlDeviceGetPersistenceMode),
    "compute_mode": lambda gpu: named(COMPUTE_MODES, nvml.nvmlDeviceGetComputeMode(gpu)),
    "performance_state": nvml.nvmlDeviceGetPerformanceState,
    # Throttle reasons were renamed in R535; the bits stayed.
    "event_reasons": either(
        nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    ),
    "pci": {"bus_id device_id subsystem_id": pci},
    "pcie": {
        "generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "generation_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
        "width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
        "width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth,
        "replays": nvml.nvmlDeviceGetPcieReplayCounter,
    },
    "ecc": {
        "current pending": flags(nvml.nvmlDeviceGetEccMode),
        "volatile_corrected": of(nvml.nvmlDeviceGetTotalEccErrors, CORRECTED, VOLATILE),
        "volatile_uncorrected": of(nvml.nvmlDeviceGetTotalEccErrors, UNCORRECTED, VOLATILE),
        "aggregate_corrected": of(nvml.nvmlDeviceGetTotalEccErrors, CORRECTED, AGGREGATE),
        "aggregate_uncorrected": of(nvml.nvmlDeviceGetTotalEccErrors, UNCORRECTED, AGGREGATE),
    },
    "retired_pages": {
        "single_bit": retired_pages(nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
        "double_bit": retired_pages(nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
        "pending": flag(nvml.nvmlDeviceGetRetiredPagesPendingStatus),
    },
    "inforom": {
        "valid": validate_inforom,
        "image": nvml.nvmlDeviceGetInforomImageVersion,
        "oem": of(nvml.nvmlDeviceGetInforomVersion, nvml.NVML_INFOROM_OEM),
        "ecc": of(nvml.nvmlDeviceGetInforomVersion, nvml.NVML_INFOROM_ECC),
        "power": of(nvml.nvmlDeviceGetInforomVersion, nvml.NVML_INFOROM_POWER),
    },
    "driver_model": {
        "current pending": lambda gpu: [
            named(DRIVER_MODELS, model) for model in nvml.nvmlDeviceGetDriverModel(gpu)
        ]
    },
    "power": {
        "draw_mw": nvml.nvmlDeviceGetPowerUsage,
        "limit_mw": nvml.nvmlDeviceGetPowerManagementLimit,
        "enforced_mw": nvml.nvmlDeviceGetEnforcedPowerLimit,
        "default_mw": nvml.nvmlDeviceGetPowerManagementDefaultLimit,
        "min_mw max_mw": nvml.nvmlDeviceGetPowerManagementLimitConstraints,
    },
    "temperature": {
        "gpu": of(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        "memory": of(field_value, nvml.NVML_FI_DEV_MEMORY_TEMP),
        "shutdown": of(
            nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        ),
        "slowdown": of(
            nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "gpu_max": of(
            nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX
        ),
        "memory_max": of(
            nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
        ),
    },
    "clocks": clocks(nvml.nvmlDeviceGetClockInfo),
    "clocks_max": clocks(nvml.nvmlDeviceGetMaxClockInfo),
    "application_clocks": {
        "graphics": of(nvml.nvmlDeviceGetApplicationsClock, nvml.NVML_CLOCK_GRAPHICS),
        "memory": of(nvml.nvmlDeviceGetApplicationsClock, nvml.NVML_CLOCK_MEM),
        "default_graphics": of(
            nvml.nvmlDeviceGetDefaultApplicationsClock, nvml.NVML_CLOCK_GRAPHICS
        ),
        "default_memory": of(nvml.nvmlDeviceGetDefaultApplicationsClock, nvml.NVML_CLOCK_MEM),
    },
    "memory": {"total reserved used free": either(memory, memory_v1)},
    "utilization": {"gpu memory": utilization},
    "utilization_samples": {"mean span_ms": utilization_samples},
    "nvlinks": nvlinks,
    "compute_processes": processes(
        nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2
    ),
    "graphics_processes": processes(
        nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v2
    ),
}

HOST: Rows = {
    "driver_version": nvml.nvmlSystemGetDriverVersion,
    "nvml_version": nvml.nvmlSystemGetNVMLVersion,
    "cuda_version": nvml.nvmlSystemGetCudaDriverVersion,
    "device_count": nvml.nvmlDeviceGetCount,
}


def read_gpu(index: int) -> GpuFacts:
    """All of one GPU, or why NVML does not open it."""
    handle = attempt(nvml.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, NvmlError):
        return GpuFacts(index=index, handle_error=handle)
    return read(GpuFacts, GPU, handle, index=index)


def read_host() -> NvmlFacts:
    """All that NVML tells, whatever state the driver is in."""
    init_error = attempt(nvml.nvmlInit)
    try:
        host = read(NvmlFacts, HOST, init_error=init_error)
        gpus = [read_gpu(index) for index in range(value(host.device_count) or 0)]
    finally:
        if init_error is None:
            attempt(nvml.nvmlShutdown)
    return msgspec.structs.replace(host, gpus=gpus)
