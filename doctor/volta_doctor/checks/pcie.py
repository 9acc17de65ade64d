"""Is every card there, and does its PCIe link run as it should?"""

from collections.abc import Iterable
from math import ceil

from volta_doctor.catalog import Row
from volta_doctor.checks.earlier import earlier
from volta_doctor.checks.gpu import (
    gpus,
    is_volta,
    per_gpu,
    seen,
    shown,
    started,
    subject,
    told,
    unopened,
)
from volta_doctor.checks.registry import check
from volta_doctor.facts.expect import Expect
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, NvmlError, NvmlFacts, errors, value
from volta_doctor.facts.pci import PciDevice, bus_id
from volta_doctor.findings import Evidence, Finding
from volta_doctor.profile import card_name
from volta_doctor.profile import is_volta as is_volta_device
from volta_doctor.words import duration, several

_LOST, _RESET_REQUIRED = 15, 16  # nvmlReturn_t (nvml.h)
# Drivers that hold a card for a virtual machine: NVML is not to have it.
_FOR_GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")

# V100 is a Gen3 x16 device (NVIDIA Tesla V100 datasheet).
_WIDTH, _GENERATION = 16, 3
# GT/s of each generation; one lost bit in 10^12 makes 0.06 replays a minute for each of them.
_TRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_REPLAYS_PER_GT = 0.06
_SHORTEST_S = 60  # in less time one replay would look like many a minute


@check("gpu-count")
def gpu_count(facts: Facts, row: Row) -> Finding:
    """A card can be missing from the bus, from the driver or from /dev."""
    nvml, nodes = started(facts), facts.host.need().nvidia_nodes
    count = value(nvml.device_count)
    if count is None:
        raise Missing(f"NVML does not tell the number of GPUs: {shown(nvml.device_count)}.")
    if len(nvml.gpus) < count:
        raise Missing(
            f"NVML counts {several(count, 'GPU')}; the snapshot holds {len(nvml.gpus)} of them."
        )
    on_bus = facts.pci.need().gpus
    for_host = [device for device in on_bus if device.driver not in _FOR_GUESTS]
    guests = len(on_bus) - len(for_host)
    evidence = [
        Evidence("PCI", f"{several(len(on_bus), 'GPU')}, {guests} held for virtual machines"),
        seen(facts, several(count, "GPU")),
        Evidence("/dev", "nodes not recorded" if nodes is None else f"{len(nodes)} nodes"),
    ]
    expect, switches = facts.expect or Expect(), len(facts.pci.need().nvswitches)
    for noun, number, expected in (
        ("GPU", len(on_bus), expect.gpus),
        ("NVSwitch", switches, expect.nvswitches),
    ):
        if expected is not None and expected != number:
            text = f"PCI shows {several(number, noun)}, and such a host has {expected}."
            return row.fail(text, Evidence("profile", several(expected, noun)), *evidence)
    container = facts.host.need().container
    if container and count < len(for_host):
        if nodes is None:
            raise Missing(
                f"NVML shows {several(count, 'GPU')}; the nodes in /dev were not recorded."
            )
        if len(nodes) == count:
            text = (
                f"This container ({container}) is given {count} of the host's {len(for_host)} GPUs"
            )
            return row.ok(f"{text}: NVML and /dev show those.", *evidence)
    elif count != len(for_host):
        return _differ(row, nvml.gpus, for_host, count, evidence)
    if nodes is not None and len(nodes) > count:
        text = f"/dev has {several(len(nodes), 'GPU')} (/dev/nvidiaN), NVML shows {count}"
        return row.fail(f"{text}: a card is gone or cannot be opened.", *evidence)
    return row.ok(f"GPUs by PCI and by NVML: {count}.", *evidence)


def _differ(
    row: Row, opened: list[GpuFacts], for_host: list[PciDevice], count: int, seen: list[Evidence]
) -> Finding:
    listed = {bus_id(value(gpu.pci.bus_id) or "") for gpu in opened}
    lacking = [device for device in for_host if device.bus_id not in listed]
    names = ", ".join(f"{card_name(device)} at {device.bus_id}" for device in lacking)
    text = (
        f"PCI shows {several(len(for_host), 'GPU')}, NVML {count}. Not in NVML: {names or 'none'}."
    )
    volta = any(is_volta_device(device) for device in for_host)
    if volta and lacking and not any(is_volta_device(device) for device in lacking):
        return row.warn(f"{text} This driver may be too new or too old for that card.", *seen)
    return row.fail(text, *seen)


@check("gpu-lost")
def gpu_lost(facts: Facts, row: Row) -> Iterable[Finding]:
    """A card that has left the bus answers no call, or every call with the same error."""
    for call, reading in _of_host(facts.nvml.need()):
        if isinstance(reading, NvmlError) and reading.error in (_LOST, _RESET_REQUIRED):
            text = f"NVML cannot be used for a GPU that is lost or waits for a reset: {call} fails."
            yield row.fail(text, Evidence(call, shown(reading)))
            return
    for gpu in gpus(facts):
        name = subject(gpu)
        lost = [path for path, error in errors(gpu) if error.error == _LOST]
        stuck = [path for path, error in errors(gpu) if error.error == _RESET_REQUIRED]
        if lost:
            text = f"The GPU is lost: {several(len(lost), 'reading')} of NVML failed with error 15."
            yield row.fail(text, seen(facts, f"{lost[0]}: error 15"), subject=name)
        elif stuck:
            text = (
                f"The GPU waits for a reset: {several(len(stuck), 'reading')} of NVML failed with"
                " error 16."
            )
            yield row.fail(text, seen(facts, f"{stuck[0]}: error 16"), subject=name)
        elif gpu.handle_error:
            yield unopened(row, gpu)
        else:
            yield row.ok("NVML reads it.", subject=name)


def _of_host(nvml: NvmlFacts) -> Iterable[tuple[str, object]]:
    return ("nvmlInit", nvml.init_error), ("nvmlDeviceGetCount", nvml.device_count)


@check("pcie-width")
@per_gpu
def pcie_width(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Half the lanes are half the bandwidth between host and card."""
    width = told(gpu.pcie.width, "PCIe link width")
    expected = facts.expect.pcie_width if facts.expect else None
    if expected is None:
        expected = _WIDTH if is_volta(gpu) else told(gpu.pcie.width_max, "widest PCIe link")
    evidence = seen(facts, f"PCIe width {width}, at most {shown(gpu.pcie.width_max)}")
    text = f"{width} PCIe lanes"
    if width < expected:
        return row.fail(f"{text} of {expected}.", evidence)
    return row.ok(f"{text}.", evidence)


@check("pcie-gen")
@per_gpu
def pcie_gen(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """An idle card may slow its link down; a busy one has no reason to."""
    generation = told(gpu.pcie.generation, "PCIe generation")
    highest = value(gpu.pcie.generation_max)
    expected = facts.expect.pcie_generation if facts.expect else None
    if expected is None:
        volta = is_volta(gpu)
        expected = _GENERATION if volta else told(gpu.pcie.generation_max, "highest generation")
    evidence = seen(
        facts, f"PCIe generation {generation}, at most {shown(gpu.pcie.generation_max)}"
    )
    text = f"PCIe runs at generation {generation}"
    if generation >= expected:
        return row.ok(f"{text}.", evidence)
    if gpu.pcie.generation_max is None:
        raise Missing("What card and slot together reach was not recorded.")
    host = facts.host.data
    if highest is not None and highest < expected:
        if host and host.virtual is False:
            text = f"{text}, and card and slot together reach no more than {highest} of {expected}."
            return row.fail(text, evidence)
        text = f"{text}, at most {highest}; a virtual machine does not see the real slot."
        return row.info(text, evidence)
    busy = told(gpu.utilization.gpu, "utilisation")
    state = told(gpu.performance_state, "performance state")
    if busy > 0 and state == 0:
        text = f"{text} of {expected} under load ({busy} % busy in P0)."
        return row.fail(text, evidence, seen(facts, f"utilisation {busy} %, P{state}"))
    return row.info(f"{text} of {expected} while the card idles, to save power.", evidence)


@check("pcie-replay")
@per_gpu
def pcie_replay(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Each replay is a packet that arrived damaged; a sound link has next to none."""
    count = told(gpu.pcie.replays, "PCIe replays")
    width = told(gpu.pcie.width, "PCIe link width")
    if count == 0:
        return row.ok("No PCIe replay since the driver was loaded.", seen(facts, "0 replays"))
    generation = value(gpu.pcie.generation_max) or value(gpu.pcie.generation) or _GENERATION
    per_lane = _REPLAYS_PER_GT * _TRANSFERS.get(generation, _TRANSFERS[_GENERATION])
    limit = ceil(round(per_lane * width, 6))
    evidence = [seen(facts, f"{count} replays, Gen{generation} x{width}")]
    rise, seconds, since = count, _uptime(facts), "on average since the boot"
    try:
        before = earlier(facts, gpu, count, lambda sample: sample.pcie_replays)
    except Missing:  # the average is the best that can be told
        before = []
    window = next((point for point in before if point.age >= _SHORTEST_S), None)
    if window:
        rise, seconds, since = (
            count - window.reading,
            window.age,
            f"in the last {duration(window.age)}",
        )
        evidence.append(window.evidence)
    if seconds < _SHORTEST_S:
        raise Missing(
            f"{several(count, 'PCIe replay')} {duration(seconds)} after boot: too early to tell."
        )
    text = (
        f"{rise * 60 / seconds:.2f} PCIe replays a minute {since} ({count} in all); a link of"
        f" generation {generation} with {several(width, 'lane')} may have {limit}."
    )
    if rise * 60 > limit * seconds:
        return row.fail(text, *evidence, count=count)
    return row.ok(text, *evidence)


def _uptime(facts: Facts) -> int:
    host = facts.host.need()
    return host.time - host.boot_time
