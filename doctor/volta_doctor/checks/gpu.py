"""What NVML says of each GPU."""

import re
from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, NvmlError, errors, value
from volta_doctor.findings import Evidence, Finding

# nvmlReturn_t (nvml.h)
_NOT_SUPPORTED, _FUNCTION_NOT_FOUND = 3, 13


def gpus(facts: Facts) -> list[GpuFacts]:
    """Return the GPUs. Raises Missing where NVML did not start or lists none."""
    nvml = facts.nvml.need()
    if nvml.init_error:
        raise Missing(f"NVML did not start: {nvml.init_error.error} ({nvml.init_error.text})")
    if not nvml.gpus:
        raise Missing("NVML lists no GPU")
    return nvml.gpus


def subject(gpu: GpuFacts) -> str:
    """Name a GPU by its UUID, else by its index."""
    return value(gpu.uuid) or f"GPU {gpu.index}"


def shown(reading: object) -> str:
    """Put a reading in words: its value, NVML's error, or that it was not recorded."""
    if isinstance(reading, NvmlError):
        return f"error {reading.error} ({reading.text})"
    return "not recorded" if reading is None else str(reading)


def unsupported(reading: object) -> bool:
    """Say whether NVML knows no such reading on this card."""
    return isinstance(reading, NvmlError) and reading.error == _NOT_SUPPORTED


def unopened(row: Row, gpu: GpuFacts) -> Finding:
    """Say that nothing is known of a GPU that NVML could not open."""
    return row.unknown(f"NVML cannot open it: {shown(gpu.handle_error)}.", subject=subject(gpu))


@check("nvml-abi")
def nvml_abi(facts: Facts, row: Row) -> Finding:
    """A binding for another branch calls functions that are not there or misreads structures."""
    nvml, pid_max = facts.nvml.need(), facts.processes.need().pid_max
    lacking = (path for path, error in errors(nvml) if error.error == _FUNCTION_NOT_FOUND)
    # gpus.0.ecc.current and gpus.1.ecc.current are one function
    missing = list(dict.fromkeys(re.sub(r"\b\d+\b", "N", path) for path in lacking))
    wild = [
        process.pid
        for gpu in gpus(facts)
        for reading in (gpu.compute_processes, gpu.graphics_processes)
        for process in value(reading) or []
        if process.pid > pid_max
    ]
    versions = f"NVML {shown(nvml.nvml_version)}, driver {shown(nvml.driver_version)}"
    seen = Evidence("NVML", versions)
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        return row.warn(f"The driver's library lacks functions for: {names}.", seen)
    if wild:
        text = f"A process list holds pid {wild[0]}, above kernel.pid_max {pid_max}."
        return row.warn(text, seen, Evidence("/proc/sys/kernel/pid_max", str(pid_max)))
    return row.ok(f"Binding and library agree ({versions}).", seen)


@check("vbios-mix")
def vbios_mix(facts: Facts, row: Row) -> Iterable[Finding]:
    """Compare GPUs of one board part number with each other only."""
    by_part: dict[str, dict[str, list[str]]] = {}
    for gpu in gpus(facts):
        part, vbios = value(gpu.part_number), value(gpu.vbios)
        if gpu.handle_error:
            yield unopened(row, gpu)
            continue
        if unsupported(gpu.part_number):
            yield row.skip("This card has no board part number.", subject=subject(gpu))
            continue
        if part is None or vbios is None:
            text = f"part number {shown(gpu.part_number)}, VBIOS {shown(gpu.vbios)}"
            yield row.unknown(f"NVML does not tell: {text}.", subject=subject(gpu))
            continue
        by_part.setdefault(part, {}).setdefault(vbios, []).append(subject(gpu))
    for part, by_vbios in by_part.items():
        seen = [Evidence("NVML", f"{vbios}: {', '.join(g)}") for vbios, g in by_vbios.items()]
        if len(by_vbios) > 1:
            text = f"Part {part} runs {len(by_vbios)} VBIOS versions: {', '.join(by_vbios)}."
            yield row.warn(text, *seen, subject=f"part {part}")
        else:
            yield row.ok(f"VBIOS {next(iter(by_vbios))}.", *seen, subject=f"part {part}")


@check("ecc-mode")
def ecc_mode(facts: Facts, row: Row) -> Iterable[Finding]:
    """Without ECC a failing card gives wrong answers in place of an error."""
    for gpu in gpus(facts):
        current, pending = gpu.ecc.current, gpu.ecc.pending
        seen = Evidence("NVML", f"current {shown(current)}, pending {shown(pending)}")
        name = subject(gpu)
        if gpu.handle_error:
            yield unopened(row, gpu)
        elif unsupported(current):
            yield row.skip("This card has no ECC mode.", seen, subject=name)
        elif value(current) is None or value(pending) is None:
            yield row.unknown("NVML does not tell the ECC mode.", seen, subject=name)
        elif not current and not pending:
            yield row.warn("ECC is off.", seen, subject=name)
        elif current != pending:
            turns = "on" if pending else "off"
            yield row.warn(f"ECC turns {turns} at the next boot.", seen, subject=name)
        else:
            yield row.ok("ECC is on.", seen, subject=name)
