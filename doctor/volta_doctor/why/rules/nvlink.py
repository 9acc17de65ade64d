"""NVLink's counters, of which a text shows one reading and no rise."""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.facts.history import crc_errors
from volta_doctor.facts.nvml import NvLinkFacts, value
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, possible, rule

_MANY = 1000  # since the driver was loaded; a link in order has none


@rule("nvl-crc")
def counted(case: Case, row: Row) -> Iterator[Finding]:
    """Many damaged packets, or some beside packets that were sent again: the link is at fault."""
    nvml = case.facts.nvml.data
    for gpu in nvml.gpus if nvml else []:
        links = value(gpu.nvlinks) or []
        counts = {number: errors for number, link in enumerate(links) if (errors := _crc(link))}
        if not counts:
            continue
        text = ", ".join(f"{count} on link {number}" for number, count in counts.items())
        text = f"NVLink CRC errors: {text}."
        names = case.names(f"GPU {gpu.index}") | {f"GPU {gpu.index}"}
        shown = [s.evidence for s in case.seen if s.value == "CRC errors" and s.subject in names]
        repeated = any(value(links[number].replays) for number in counts)
        if repeated or max(counts.values()) >= _MANY:
            finding = row.warn(text, *shown, subject=f"GPU {gpu.index}")
            yield likely(finding, "one reading does not show whether the counter still rises")
        else:
            finding = row.info(text, *shown, subject=f"GPU {gpu.index}")
            yield possible(finding, "a few may be from the start of the driver: read them again")


def _crc(link: NvLinkFacts) -> int:
    if value(link.crc_flit) is None or value(link.crc_data) is None:
        return 0
    return crc_errors(link) or 0
