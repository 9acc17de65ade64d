"""Is a card held below the power and clocks that it was made for?"""

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import per_gpu, seen, setting, told
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.findings import Finding


def watts(milliwatts: int) -> str:
    """Write watts as nvidia-smi -pl takes them."""
    return f"{milliwatts / 1000:g}"


@check("power-limit")
@per_gpu
def power_limit(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A limit below the default is somebody's choice, or a leftover of it."""
    enforced = told(gpu.power.enforced_mw, "enforced power limit")
    default = told(gpu.power.default_mw, "default power limit")
    asked = value(gpu.power.limit_mw)
    evidence = seen(facts, f"enforced {watts(enforced)} W, default {watts(default)} W")
    if enforced >= default:
        return row.ok(f"The power limit is {watts(enforced)} W.", evidence)
    text = f"The power limit is {watts(enforced)} W, below the default of {watts(default)} W"
    if asked is None or asked >= default:
        return row.warn(f"{text}; no nvidia-smi -pl set it, so look at the BMC.", evidence)
    steps = setting(facts, gpu, ("-pl", watts(default)), ("-pl", watts(asked)))
    return row.warn(f"{text}.", evidence, steps=steps)


@check("app-clocks")
@per_gpu
def app_clocks(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """The clocks that a card takes under load, where power and heat let it."""
    graphics = told(gpu.application_clocks.graphics, "application clocks")
    memory = told(gpu.application_clocks.memory, "application clock of the memory")
    fastest = told(gpu.clocks_max.graphics, "highest graphics clock")
    evidence = seen(facts, f"application clock {graphics} MHz, highest {fastest} MHz")
    if graphics >= fastest:
        return row.ok(f"The application clock is {graphics} MHz.", evidence)
    text = f"The application clock is {graphics} MHz, the card's highest {fastest} MHz."
    highest = f"{value(gpu.clocks_max.memory) or memory},{fastest}"
    steps = setting(facts, gpu, ("-ac", highest), ("-ac", f"{memory},{graphics}"))
    return row.info(text, evidence, steps=steps)
