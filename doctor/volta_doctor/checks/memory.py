"""Does the memory report errors, is its error correction on, and is the InfoROM sound?"""

from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.earlier import DAY, earlier, over
from volta_doctor.checks.gpu import (
    is_volta,
    per_gpu,
    seen,
    shown,
    told,
    unsupported,
)
from volta_doctor.checks.log import shown as lines
from volta_doctor.checks.log import window
from volta_doctor.checks.registry import check
from volta_doctor.facts.kernel_log.events import xids
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, Reading, errors, value
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence, Finding, Status
from volta_doctor.words import duration, several

_CORRECTED_FAIL = 50_000_000
_CORRECTED_RISE = 10
_CORRUPTED_INFOROM = 14  # nvmlReturn_t (nvml.h), and the exit code of nvidia-smi for it
_WORN = 93  # the Xid of an InfoROM that nears its limit of writes


@check("ecc-mode")
@per_gpu
def ecc_mode(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Without ECC a failing card gives wrong answers in place of an error."""
    current, pending = gpu.ecc.current, gpu.ecc.pending
    evidence = seen(facts, f"current {shown(current)}, pending {shown(pending)}")
    if unsupported(current):
        return row.skip("This card has no ECC mode.", evidence)
    if value(current) is None or (current and value(pending) is None):
        return row.unknown("NVML does not tell the ECC mode.", evidence)
    if not current and not value(pending):
        return row.warn("ECC is off.", evidence)
    if current != pending:
        turns = "on" if pending else "off"
        return row.warn(f"ECC turns {turns} at the next boot.", evidence)
    return row.ok("ECC is on.", evidence)


@check("ecc-dbe-vol")
@per_gpu
def ecc_dbe_vol(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """An error that ECC could not correct has ended the work that met it."""
    count = _counted(gpu, gpu.ecc.volatile_uncorrected, "volatile double-bit ECC errors")
    evidence = seen(facts, f"volatile uncorrected ECC errors {count}")
    if count > 0:
        text = f"{several(count, 'double-bit ECC error')} since the driver was loaded."
        return row.fail(text, evidence, count=count)
    return row.ok("No double-bit ECC error since the driver was loaded.", evidence)


@check("ecc-dbe-agg")
@per_gpu
def ecc_dbe_agg(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """The InfoROM keeps this count, so it is a card's history and not its state."""
    count = _kept(gpu, gpu.ecc.aggregate_uncorrected, "aggregate double-bit ECC errors")
    evidence = seen(facts, f"aggregate uncorrected ECC errors {count}")
    if count > 0:
        text = f"{several(count, 'double-bit ECC error')} in the card's lifetime."
        return row.warn(text, evidence, count=count)
    return row.ok("No double-bit ECC error in the card's lifetime.", evidence)


def _counted(gpu: GpuFacts, reading: Reading[int], what: str) -> int:
    """Read a count since the driver was loaded; with ECC off it says nothing while it is 0."""
    if not value(reading) and told(gpu.ecc.current, "ECC mode") is False:
        raise Missing("ECC is off, so no error is counted.")
    return told(reading, what)


def _kept(gpu: GpuFacts, reading: Reading[int], what: str) -> int:
    """Read a lifetime count; with ECC off NVML shows none, although the card keeps it."""
    if unsupported(reading) and value(gpu.ecc.current) is False:
        raise Missing("ECC is off, so NVML shows no count.")
    return told(reading, what)


@check("ecc-sbe")
@per_gpu
def ecc_sbe(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Corrected errors do no harm; many of them announce those that do."""
    count = _counted(gpu, gpu.ecc.volatile_corrected, "volatile single-bit ECC errors")
    evidence = seen(facts, f"volatile corrected ECC errors {count}")
    text = f"{several(count, 'single-bit ECC error')} since the driver was loaded"
    if count > _CORRECTED_FAIL:
        return row.fail(f"{text}, above {_CORRECTED_FAIL}.", evidence, count=count)
    if count <= _CORRECTED_RISE:  # it cannot have risen by more
        return row.ok(f"{text}.", evidence)
    try:
        before = over(DAY, earlier(facts, gpu, count, lambda sample: sample.ecc_corrected))
    except Missing as reason:
        return row.unknown(f"{text}. {reason}", evidence)
    rise = count - before.reading
    text = f"{text}, {rise} of them in the last {duration(before.age)}."
    if rise > _CORRECTED_RISE:
        return row.warn(text, evidence, before.evidence, count=count)
    return row.ok(text, evidence, before.evidence)


@check("inforom")
def inforom(facts: Facts, row: Row) -> Iterable[Finding]:
    """A corrupted InfoROM loses the card's identity, its error counts and its limits."""
    smi = facts.smi.data
    by_smi = smi is not None and smi.exit_code == _CORRUPTED_INFOROM
    try:
        findings = list(_inforoms(facts, row))
    except Missing:
        if not by_smi:
            raise
        findings = []
    yield from findings
    if by_smi and all(finding.status is not Status.FAIL for finding in findings):
        text = "nvidia-smi exits 14, corrupted InfoROM, and NVML does not tell of which GPU."
        yield row.fail(text, Evidence("nvidia-smi -q -x", "exit 14"))


@per_gpu
def _inforoms(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    corrupted = [path for path, error in errors(gpu) if error.error == _CORRUPTED_INFOROM]
    if corrupted:
        text = "The InfoROM is corrupted."
        return row.fail(text, seen(facts, f"{', '.join(corrupted)}: error {_CORRUPTED_INFOROM}"))
    told(gpu.inforom.valid, "InfoROM validation")
    evidence = seen(facts, "InfoROM valid")
    log, bus = facts.kernel_log.data, value(gpu.pci.bus_id)
    if log is None or not log.lines or bus is None:
        return row.ok("The InfoROM validates; the kernel log was not seen.", evidence)
    worn = [xid.event for xid in xids(log) if xid.number == _WORN and xid.bus == bus_id(bus)]
    if worn and is_volta(gpu):
        text = "The InfoROM validates, and nears its limit of writes (Xid 93)."
        return row.info(text, *lines(worn), count=len(worn))
    text = f"The InfoROM validates, and no Xid 93 of it is {window(log)}."
    return row.ok(text, evidence)
