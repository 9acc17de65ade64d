"""Names of GPUs, wherever they stand. That of a Volta card counts in any sentence; another name
only where a text shows a card and does not merely speak of one ("only supported on A100+").
"""

import re
from collections.abc import Iterator

from volta_doctor.logs.parts import Part
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Text

_VOLTA = re.compile(
    r"\b(?:Tesla[ -]?|NVIDIA )?V100S?(?:[- ](?:SXM[23]|PCI-?E|DGXS|FHHL))?(?:[- ]\d\dGB)?(?![\w+])"
    r"|\bTITAN V\b(?! ?CEO)|\b(?:Quadro )?GV100\b",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"""(?:
      (?:NVIDIA|Tesla|GeForce|Quadro)\s+
      (?P<vendor>(?:GeForce\s+|Tesla\s+|RTX\s+)*
        (?:(?!GPU\b|SMI\b|OSS\b|DGX\b)[A-Z]{1,3}\s?\d{1,4}|\d{4}(?!\d))\w*
        (?:\s(?:Ti|SUPER|Ada))?(?:-\w+)*)
    | \bGPU\s?\d*\s*:\s*(?:NVIDIA\s+)?
      (?P<listed>[A-Z]\w*[ -][\w -]*\d\w*|[ABHLPT]\d{1,3}\w?)(?=\s*[(,]|\s*$)
    )""",
    re.VERBOSE,
)
_CAPABILITY = re.compile(
    r"(?:Your .{1,60}? GPU has compute capability|of cuda capability"
    r"|compute_cap(?:ability)?\s*[:=]?|Current (?:compute )?capability(?: is)?:?)"
    r"\s*(\d{1,2}\.?\d)\b",
    re.IGNORECASE,
)


@reader("V100", "TITAN", "GV100", "NVIDIA", "Tesla", "GeForce", "Quadro", "GPU", "capability")
def cards(text: Text) -> Iterator[Part]:
    """Yield the names, each once, and capabilities as 7.0."""
    found: dict[str, None] = {}
    for line in text.lines:
        found.update(dict.fromkeys(" ".join(m[0].split()) for m in _VOLTA.finditer(line.text)))
        for match in _OTHER.finditer(line.text):
            name = match["vendor"] or match["listed"]
            if not _VOLTA.search(match[0]):
                found[" ".join(name.split())] = None
        for match in _CAPABILITY.finditer(line.text):
            digits = match[1].replace(".", "")
            found[f"{digits[:-1]}.{digits[-1]}"] = None
    if found:
        yield Part(cards=list(found))
