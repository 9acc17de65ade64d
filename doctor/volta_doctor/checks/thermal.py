"""Is a card too hot, or held down for heat or power?"""

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import Inapplicable, is_volta, per_gpu, seen, shown, subject, told
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, Reading, value
from volta_doctor.findings import Evidence, Finding

# Volta's thresholds, for drivers that do not tell them: public nvidia-smi -q dump of a host with
# 8 x V100-SXM2-16GB, driver 550.127.05.
_SLOWDOWN, _HIGHEST, _MEMORY_HIGHEST = 87, 83, 85
_MEMORY_MARGIN = 5
_PLAUSIBLE = range(40, 151)  # a threshold that a driver does not know may read 0

# NVML's clock event reasons (nvml.h).
_POWER_CAP, _SW_THERMAL = 0x4, 0x20
_HARDWARE = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
_MINUTES = 10
_MINUTES_FAIL = 6  # 0.6 a minute


def threshold(gpu: GpuFacts, reading: Reading[int], of_volta: int) -> int | None:
    """Return the card's own threshold, else Volta's, None for other cards that do not tell."""
    own = value(reading)
    if own is not None and own in _PLAUSIBLE:
        return own
    return of_volta if is_volta(gpu) else None


@check("temp-gpu")
@per_gpu
def temp_gpu(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Above its operating range a card slows down, and then shuts down."""
    now, own = told(gpu.temperature.gpu, "temperature"), gpu.temperature
    slowdown = threshold(gpu, own.slowdown, _SLOWDOWN)
    highest = threshold(gpu, own.gpu_max, _HIGHEST)
    if slowdown is None and highest is None:
        raise Inapplicable(f"This card tells no threshold to hold its {now} C against.")
    told_limits = {"operating up to": highest, "slowdown at": slowdown}
    limits = [f"{what} {at} C" for what, at in told_limits.items() if at is not None]
    evidence = seen(facts, "; ".join([f"{now} C", *limits]))
    if slowdown is not None and now >= slowdown:
        return row.fail(f"{now} C: at its slowdown temperature of {slowdown} C.", evidence)
    if highest is not None and now >= highest:
        return row.warn(f"{now} C: at its highest operating temperature, {highest} C.", evidence)
    return row.ok(f"{now} C.", evidence)


@check("temp-mem")
@per_gpu
def temp_mem(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Hot memory makes errors before the GPU is hot."""
    now = told(gpu.temperature.memory, "memory temperature")
    if now == 0:  # so some drivers say that there is no sensor
        raise Inapplicable("This card tells no memory temperature.")
    highest = threshold(gpu, gpu.temperature.memory_max, _MEMORY_HIGHEST)
    if highest is None:
        raise Inapplicable(f"This card tells no threshold to hold its memory's {now} C against.")
    evidence = seen(facts, f"memory {now} C, operating up to {highest} C")
    if now >= highest:
        return row.fail(f"Memory at {now} C: its highest is {highest} C.", evidence)
    if now >= highest - _MEMORY_MARGIN:
        return row.warn(f"Memory at {now} C, near its highest of {highest} C.", evidence)
    return row.ok(f"Memory at {now} C.", evidence)


def hardware_reasons(mask: int) -> str:
    """Name the hardware's reasons in a mask of clock event reasons."""
    return ", ".join(name for bit, name in _HARDWARE.items() if mask & bit)


@check("throttle-hw")
@per_gpu
def throttle_hw(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """The card slows itself down to save itself: heat, or too little power."""
    mask = told(gpu.event_reasons, "clock event reasons")
    now = hardware_reasons(mask)
    minutes = {0} if now else set()
    host, history = facts.host.data, facts.history.data
    if host and history:
        for sample in history.samples:
            of_gpu, minute = sample.gpus.get(subject(gpu)), (host.time - sample.time) // 60
            if of_gpu and hardware_reasons(of_gpu.event_reasons or 0) and 0 <= minute < _MINUTES:
                minutes.add(minute)
    evidence = [seen(facts, f"clock event reasons {mask:#x}")]
    if minutes - {0}:
        evidence.append(Evidence("history", f"in {len(minutes)} of the last {_MINUTES} minutes"))
    state = f"Active now: {now}." if now else "Not active now."
    if minutes:
        text = f"Hardware slowdown in {len(minutes)} of the last {_MINUTES} minutes. {state}"
        found = row.fail if len(minutes) >= _MINUTES_FAIL else row.warn
        return found(text, *evidence)
    return row.ok("No hardware slowdown.", *evidence)


@check("throttle-sw")
@per_gpu
def throttle_sw(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """The driver lowers the clocks to keep the card within its limits."""
    mask = told(gpu.event_reasons, "clock event reasons")
    evidence = seen(facts, f"clock event reasons {mask:#x}")
    if mask & _SW_THERMAL:
        text = f"The driver slows the card down for its heat ({shown(gpu.temperature.gpu)} C)."
        return row.warn(text, evidence)
    if mask & _POWER_CAP:
        busy = value(gpu.utilization.gpu)
        if busy is None:
            raise Missing("The power cap is active, and NVML does not tell whether the card works.")
        if busy > 0:
            cap = value(gpu.power.enforced_mw)
            limit = f" of {cap / 1000:g} W" if cap else ""
            text = f"The power cap{limit} holds the clocks down ({busy} % busy)."
            return row.info(text, evidence)
    return row.ok("No software slowdown.", evidence)
