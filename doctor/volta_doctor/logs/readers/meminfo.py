"""/proc/meminfo, whole or the lines that a grep left: RAM and reserved huge pages."""

import re
from collections.abc import Iterator

from volta_doctor.facts.host import HostFacts
from volta_doctor.facts.host.memory import HugePages
from volta_doctor.facts.model import Facts
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Text

_LINE = re.compile(
    r"^(MemTotal|MemAvailable|Hugepagesize|HugePages_(?:Total|Free)):\s+(\d+)(?: kB)?$"
)
_KIB = 1024


@reader("MemTotal:", "HugePages_Total:", after=60)
def meminfo(text: Text) -> Iterator[Part]:
    """Yield what is reserved, where the RAM is told as well."""
    found: dict[str, int] = {}
    seen: list[Seen] = []
    for line in text.lines:
        if match := _LINE.match(line.body):
            found.setdefault(match[1], int(match[2]))
            words = f"{match[2]} reserved" if match[1] == "HugePages_Total" else ""
            seen.append(Seen("host", words, text.evidence(line)))
    if "MemTotal" not in found or not {"HugePages_Total", "Hugepagesize"} <= found.keys():
        return
    total = found["HugePages_Total"]
    pages = HugePages(
        page_bytes=found["Hugepagesize"] * _KIB,
        count=total,
        free=found.get("HugePages_Free", total),
        default=True,
    )
    host = HostFacts(ram_bytes=found["MemTotal"] * _KIB, huge_pages=[pages])
    yield Part(Facts(host=section(host)), ("hugepages",), seen)
