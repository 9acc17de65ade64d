"""Lines of a case by regular expression: for what people say, which no tool's sentence fixes."""

import re
from itertools import islice

from volta_doctor.findings import Evidence
from volta_doctor.why.case import Case


def lines(case: Case, pattern: re.Pattern[str], most: int = 2) -> list[Evidence]:
    """Return the first lines in which a pattern is found."""
    found = (t.evidence(line) for t in case.texts for line in t.lines if pattern.search(line.text))
    return list(islice(found, most))
