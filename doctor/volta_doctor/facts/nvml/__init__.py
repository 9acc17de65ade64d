"""What NVML says of the host's GPUs: the ``nvml`` section of a snapshot.

Every reading is one of three things: a value, the `NvmlError` that the driver gave instead, or
None where the snapshot does not hold it (a lost GPU, an older snapshot, a partial paste).
Integers keep NVML's own units, named by the field or its docstring.
"""

from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class NvmlError(msgspec.Struct, frozen=True):
    """A call that NVML refused: its return code and NVML's own text for it.

    Codes worth knowing: 3 not supported, 9 driver not loaded, 12 library not found, 13 function
    not found, 14 corrupted InfoROM, 15 GPU is lost, 16 reset required, 18 driver/library mismatch.
    Source: nvml.h, nvmlReturn_t.
    """

    error: int
    text: str

    def __str__(self) -> str:
        return f"{self.error} ({self.text})"


Reading: TypeAlias = T | NvmlError | None


class _Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all groups: nothing recorded is nothing written."""


class PciFacts(_Facts, frozen=True):
    """Where the card sits. Ids are written as nvidia-smi does: 0x1DB110DE is device, vendor."""

    bus_id: Reading[str] = None
    device_id: Reading[str] = None
    subsystem_id: Reading[str] = None


class PcieFacts(_Facts, frozen=True):
    """The PCIe link: generation, lanes, and replays since the driver was loaded."""

    generation: Reading[int] = None
    generation_max: Reading[int] = None
    width: Reading[int] = None
    width_max: Reading[int] = None
    replays: Reading[int] = None


class EccFacts(_Facts, frozen=True):
    """ECC mode, and error totals since the driver was loaded (volatile) and ever (aggregate)."""

    current: Reading[bool] = None
    pending: Reading[bool] = None
    volatile_corrected: Reading[int] = None
    volatile_uncorrected: Reading[int] = None
    aggregate_corrected: Reading[int] = None
    aggregate_uncorrected: Reading[int] = None


class RetiredPage(_Facts, frozen=True):
    """A memory page taken out of use.

    `timestamp` is NVML's since the epoch, in a unit its documentation does not name; None from
    drivers older than 410.72. nvidia-smi only counts pages: then both are None.
    """

    address: int | None = None
    timestamp: int | None = None


class RetiredPagesFacts(_Facts, frozen=True):
    """Pages retired after several single-bit or one double-bit ECC error."""

    single_bit: Reading[list[RetiredPage]] = None
    double_bit: Reading[list[RetiredPage]] = None
    pending: Reading[bool] = None


class InforomFacts(_Facts, frozen=True):
    """The InfoROM: `valid` is True or the error of nvmlDeviceValidateInforom; object versions."""

    valid: Reading[bool] = None
    image: Reading[str] = None
    oem: Reading[str] = None
    ecc: Reading[str] = None
    power: Reading[str] = None


class DriverModelFacts(_Facts, frozen=True):
    """Windows driver model (wddm, wdm = TCC, mcdm); error 3 on Linux."""

    current: Reading[str] = None
    pending: Reading[str] = None


class PowerFacts(_Facts, frozen=True):
    """Milliwatts: draw, limit asked for, limit enforced, and what the card allows."""

    draw_mw: Reading[int] = None
    limit_mw: Reading[int] = None
    enforced_mw: Reading[int] = None
    default_mw: Reading[int] = None
    min_mw: Reading[int] = None
    max_mw: Reading[int] = None


class TemperatureFacts(_Facts, frozen=True):
    """Degrees Celsius: the two sensors, then the card's own thresholds."""

    gpu: Reading[int] = None
    memory: Reading[int] = None
    shutdown: Reading[int] = None
    slowdown: Reading[int] = None
    gpu_max: Reading[int] = None
    memory_max: Reading[int] = None


class ClockFacts(_Facts, frozen=True):
    """MHz of the four clock domains."""

    graphics: Reading[int] = None
    sm: Reading[int] = None
    memory: Reading[int] = None
    video: Reading[int] = None


class ApplicationClockFacts(_Facts, frozen=True):
    """MHz of the two domains that `nvidia-smi -ac` sets, and their defaults."""

    graphics: Reading[int] = None
    memory: Reading[int] = None
    default_graphics: Reading[int] = None
    default_memory: Reading[int] = None


class NvLinkFacts(_Facts, frozen=True):
    """One NVLink: version as NVML numbers it (2 is NVLink 2.0), MB/s, error counters."""

    active: Reading[bool] = None
    version: Reading[int] = None
    speed_mbps: Reading[int] = None
    replays: Reading[int] = None
    recoveries: Reading[int] = None
    crc_flit: Reading[int] = None
    crc_data: Reading[int] = None


class MemoryFacts(_Facts, frozen=True):
    """Bytes. `used` includes what the driver reserves only where `reserved` is no value."""

    total: Reading[int] = None
    reserved: Reading[int] = None
    used: Reading[int] = None
    free: Reading[int] = None


class UtilizationFacts(_Facts, frozen=True):
    """Percent of the last sample period in which a kernel ran, or memory was accessed."""

    gpu: Reading[int] = None
    memory: Reading[int] = None


class UtilizationSamplesFacts(_Facts, frozen=True):
    """What the driver keeps of the past seconds: mean percent, and the milliseconds it spans."""

    mean: Reading[int] = None
    span_ms: Reading[int] = None


class GpuProcess(_Facts, frozen=True):
    """A process with memory on the GPU; `memory` in bytes, None where the driver hides it."""

    pid: int
    memory: int | None = None


class GpuFacts(_Facts, frozen=True):
    """One GPU. With a `handle_error` NVML did not even open it, and no other reading exists.

    `event_reasons` is NVML's bit mask of why clocks are held down (0x1 idle, 0x4 power cap,
    0x8 hardware slowdown, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake).
    `compute_mode` is default, prohibited or exclusive_process. `nvlinks` is in link order.
    """

    index: int
    handle_error: NvmlError | None = None
    uuid: Reading[str] = None
    name: Reading[str] = None
    serial: Reading[str] = None
    part_number: Reading[str] = None
    vbios: Reading[str] = None
    minor_number: Reading[int] = None
    compute_capability: Reading[str] = None
    persistence: Reading[bool] = None
    compute_mode: Reading[str] = None
    performance_state: Reading[int] = None
    event_reasons: Reading[int] = None
    pci: PciFacts = PciFacts()
    pcie: PcieFacts = PcieFacts()
    ecc: EccFacts = EccFacts()
    retired_pages: RetiredPagesFacts = RetiredPagesFacts()
    inforom: InforomFacts = InforomFacts()
    driver_model: DriverModelFacts = DriverModelFacts()
    power: PowerFacts = PowerFacts()
    temperature: TemperatureFacts = TemperatureFacts()
    clocks: ClockFacts = ClockFacts()
    clocks_max: ClockFacts = ClockFacts()
    application_clocks: ApplicationClockFacts = ApplicationClockFacts()
    memory: MemoryFacts = MemoryFacts()
    utilization: UtilizationFacts = UtilizationFacts()
    utilization_samples: UtilizationSamplesFacts = UtilizationSamplesFacts()
    nvlinks: Reading[list[NvLinkFacts]] = None
    compute_processes: Reading[list[GpuProcess]] = None
    graphics_processes: Reading[list[GpuProcess]] = None


class NvmlFacts(_Facts, frozen=True):
    """The host as NVML sees it; `init_error` None means that nvmlInit succeeded.

    `nvml_version` holds the version of libnvidia-ml.so.1 and can be read even after a failed
    nvmlInit. `cuda_version` is NVML's integer: 12040 is 12.4. Where NVML could not be asked, for
    `problem`, the `source` is `nvidia-smi -q -x`, which knows less.
    """

    source: str = "NVML"
    problem: str = ""

    init_error: NvmlError | None = None
    driver_version: Reading[str] = None
    nvml_version: Reading[str] = None
    cuda_version: Reading[int] = None
    device_count: Reading[int] = None
    gpus: list[GpuFacts] = []


def value(reading: Reading[T]) -> T | None:
    """Return what was read, or None where NVML gave an error or nothing was recorded."""
    return None if isinstance(reading, NvmlError) else reading


def errors(facts: object, path: str = "") -> Iterator[tuple[str, NvmlError]]:
    """Yield every error in `facts` with its path (`gpus.3.ecc.current`), depth first."""
    if isinstance(facts, NvmlError):
        yield path, facts
    elif isinstance(facts, list):
        for index, item in enumerate(facts):
            yield from errors(item, f"{path}.{index}" if path else str(index))
    elif isinstance(facts, msgspec.Struct):
        for name in facts.__struct_fields__:
            yield from errors(getattr(facts, name), f"{path}.{name}" if path else name)


def collect() -> NvmlFacts:
    """Ask the driver. Nothing raises: a missing library or driver is recorded in the facts."""
    from volta_doctor.facts.nvml import table  # only a live host needs pynvml

    return table.read_host()
