"""Ask NVML through pynvml: answers as plain values, refusals as `NvmlError`.

Here are the calls that need more than their return value; `table` says which are made.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec
import pynvml as nvml

from volta_doctor.facts.nvml import GpuProcess, NvmlError, RetiredPage

F = TypeVar("F", bound=msgspec.Struct)
Call: TypeAlias = Callable[..., Any]
Rows: TypeAlias = dict[str, "Call | Rows"]

COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
DRIVER_MODELS = ("wddm", "wdm", "mcdm")


def attempt(call: Call, *args: Any) -> Any:
    """Return what `call` returns, or the NvmlError that it raises."""
    try:
        return call(*args)
    except nvml.NVMLError as error:
        return NvmlError(error.value, str(error))
    except UnicodeDecodeError as error:  # a damaged InfoROM can hold any bytes
        return NvmlError(nvml.NVML_ERROR_UNKNOWN, f"not text: {error.object!r}")


def read(facts: type[F], rows: Rows, *where: Any, **known: Any) -> F:
    """Fill `facts` by calling every row with `where` (a GPU handle; for a link, its number)."""
    groups = {field.name: field.type for field in msgspec.structs.fields(facts)}
    for names, row in rows.items():
        if isinstance(row, dict):
            known[names] = read(groups[names], row, *where)
            continue
        answer = attempt(row, *where)
        fields = names.split()
        if len(fields) == 1 or isinstance(answer, NvmlError):
            known.update(dict.fromkeys(fields, answer))
        else:
            known.update(zip(fields, answer, strict=True))
    return facts(**known)


def either(newer: Call, older: Call) -> Call:
    """A call that takes `older` where the driver does not have `newer`."""

    def call(*args: Any) -> Any:
        try:
            return newer(*args)
        except nvml.NVMLError_FunctionNotFound:
            return older(*args)

    return call


def flag(call: Call) -> Call:
    """A call whose integer means off or on."""
    return lambda *args: bool(call(*args))


def flags(call: Call) -> Call:
    """A call whose integers each mean off or on."""
    return lambda *args: [bool(answer) for answer in call(*args)]


def named(names: tuple[str, ...], number: int) -> str:
    """The name of an enumerator; its number, should a driver know more than we do."""
    return names[number] if 0 <= number < len(names) else str(number)


def of(call: Call, *which: int) -> Call:
    """A call for one item (a sensor, a clock) of the place it is asked about."""
    return lambda *where: call(*where, *which)


def pci(gpu: Any) -> tuple[str, str, str]:
    """Bus id, device and vendor id, subsystem id."""
    info = nvml.nvmlDeviceGetPciInfo(gpu)
    return info.busId, f"0x{info.pciDeviceId:08X}", f"0x{info.pciSubSystemId:08X}"


def validate_inforom(gpu: Any) -> bool:
    """True, or the error that says what is wrong with the InfoROM."""
    nvml.nvmlDeviceValidateInforom(gpu)
    return True


def memory(gpu: Any) -> Iterable[int]:
    """Total, reserved, used and free bytes."""
    info = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return info.total, info.reserved, info.used, info.free


def memory_v1(gpu: Any) -> Iterable[int | None]:
    """Before R510 NVML counted what the driver reserves as used."""
    info = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return info.total, None, info.used, info.free


def utilization(gpu: Any) -> tuple[int, int]:
    """Percent: GPU, memory."""
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu, rates.memory


def utilization_samples(gpu: Any) -> tuple[int, int]:
    """Mean percent and milliseconds of the samples that the driver has kept."""
    kind, kept = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    samples = [sample for sample in kept if sample.timeStamp]  # a buffer not full yet has zeros
    if not samples:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)
    microseconds = [sample.timeStamp for sample in samples]
    mean = sum(_number(sample.sampleValue, kind) for sample in samples) / len(samples)
    return round(mean), (max(microseconds) - min(microseconds)) // 1000


def retired_pages(cause: int) -> Call:
    """Pages retired for `cause`, with timestamps since driver 410.72."""
    return either(
        lambda gpu: [RetiredPage(**p) for p in nvml.nvmlDeviceGetRetiredPages_v2(gpu, cause)],
        lambda gpu: [RetiredPage(address=a) for a in nvml.nvmlDeviceGetRetiredPages(gpu, cause)],
    )


def processes(newer: Call, older: Call) -> Call:
    """A process list; drivers before R510 know only the older call."""
    ask = either(newer, older)
    return lambda gpu: [GpuProcess(pid=p.pid, memory=p.usedGpuMemory) for p in ask(gpu)]


def field_value(gpu: Any, field: int, scope: int = 0) -> int:
    """One of NVML's numbered fields; `scope` is the link for those that have one per link."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [(field, scope)])
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    return _number(answer.value, answer.valueType)


def _number(value: Any, kind: int) -> int:
    # The members of nvmlValue_t in the order of nvmlValueType_t.
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return int(getattr(value, members[kind]))


def link_speed(gpu: Any, link: int) -> int:
    """MB/s. The first twelve links have field numbers of their own."""
    own = getattr(nvml, f"NVML_FI_DEV_NVLINK_SPEED_MBPS_L{link}", None)
    if own is not None:
        return field_value(gpu, own)
    return field_value(gpu, nvml.NVML_FI_DEV_NVLINK_GET_SPEED, link)
