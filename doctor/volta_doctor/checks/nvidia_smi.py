"""Does nvidia-smi answer, and what does it say that NVML does not?"""

import re
from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import is_volta, subject
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import value
from volta_doctor.facts.smi import COMMAND, LIMIT_S, SmiFacts
from volta_doctor.findings import Evidence, Finding

_COMMAND = " ".join(COMMAND)
# nvidia-smi manual page, return values.
_FAILURES = {
    2: "bad argument",
    4: "no permission",
    8: "a power cable is not attached",
    9: "the driver is not loaded",
    10: "an interrupt issue",
    12: "the NVML library is not found",
    14: "the InfoROM is corrupted",
    15: "a GPU is lost",
}
_OTHERS = {
    3: "the operation is not available on this device",
    6: "it did not find what it was asked for",
    13: "the NVML library lacks a function",
}


def answered(facts: Facts) -> SmiFacts:
    """Return the run of nvidia-smi. Raises Missing where it is not installed."""
    smi = facts.smi.need()
    if smi.path is None:
        raise Missing("nvidia-smi is not installed (not in PATH nor in the sbin directories)")
    return smi


@check("driver-model")
def driver_model(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """WDDM hides the card from compute services; Linux has no such thing and says N/A."""
    host, smi = facts.host.data, facts.smi.need()
    windows = [gpu for gpu in smi.gpus if gpu.driver_model_current]
    if not windows and host and host.system == "linux":
        return row.ok("The host runs Linux, which has no driver models.")
    if not windows:
        return row.unknown("nvidia-smi shows no driver model.")
    findings = []
    for gpu in windows:
        current, pending = gpu.driver_model_current, gpu.driver_model_pending or "N/A"
        seen = Evidence(_COMMAND, f"current {current}, pending {pending}")
        if current == "WDDM":
            finding = row.warn("The driver model is WDDM.", seen, subject=gpu.subject)
        elif pending != current:
            text = f"The driver model becomes {pending} at the next boot."
            finding = row.info(text, seen, subject=gpu.subject)
        else:
            finding = row.ok(f"The driver model is {current}.", seen, subject=gpu.subject)
        findings.append(finding)
    return findings


@check("smi-rc")
def smi_rc(facts: Facts, row: Row) -> Finding:
    """The exit code names what the driver could not do."""
    smi = answered(facts)
    if smi.exit_code is None:
        raise Missing(f"nvidia-smi gave no answer within {LIMIT_S:g} s, so it has no exit code")
    seen = Evidence(_COMMAND, f"exit {smi.exit_code} {smi.output}".strip())
    if smi.exit_code == 0:
        return row.ok("nvidia-smi exits 0.", seen)
    if smi.exit_code in _FAILURES:
        return row.fail(f"nvidia-smi exits {smi.exit_code}: {_FAILURES[smi.exit_code]}.", seen)
    meaning = _OTHERS.get(smi.exit_code, "its manual gives this code no meaning")
    return row.warn(f"nvidia-smi exits {smi.exit_code}: {meaning}.", seen)


@check("smi-hang")
def smi_hang(facts: Facts, row: Row) -> Finding:
    """A driver that is stuck takes nvidia-smi with it."""
    smi = answered(facts)
    seen = Evidence(_COMMAND, f"{smi.seconds:.1f} s")
    if smi.timed_out:
        return row.fail(f"nvidia-smi has not returned after {LIMIT_S:g} s.", seen)
    return row.ok(f"nvidia-smi answered in {smi.seconds:.1f} s.", seen)


@check("rows-na")
def rows_na(facts: Facts, row: Row) -> Iterable[Finding]:
    """A card that counts remapped rows is of a newer generation, whatever it is called."""
    smi = answered(facts)
    if not smi.gpus:
        raise Missing(f"nvidia-smi lists no GPU: {smi.output or 'its output is not XML'}")
    nvml = {subject(gpu): gpu for gpu in facts.nvml.data.gpus} if facts.nvml.data else {}
    for gpu in smi.gpus:
        rows, in_nvml = gpu.remapped_rows, nvml.get(gpu.subject)
        seen = Evidence(_COMMAND, f"remapped rows: {rows or 'N/A'}")
        if in_nvml and value(in_nvml.compute_capability) and not is_volta(in_nvml):
            yield row.skip("It is no Volta card, so it may remap rows.", seen, subject=gpu.subject)
        elif rows and re.search(r"\d", rows):
            text = f"It counts remapped rows ({rows}), which no Volta card does."
            yield row.info(text, seen, subject=gpu.subject)
        else:
            yield row.ok("Row remapping reads N/A.", seen, subject=gpu.subject)
