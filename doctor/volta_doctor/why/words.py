"""Lines of a case by regular expression: for what people say, which no tool's sentence fixes."""

import re
from itertools import islice

from volta_doctor.findings import Evidence
from volta_doctor.why.case import Case


def lines(case: Case, pattern: re.Pattern[str], most: int = 2) -> list[Evidence]:
    """Return the first lines in which a pattern is found."""
    every = ((text, line) for text in case.printed for line in text.lines)
    found = (text.evidence(line) for text, line in every if pattern.search(line.text))
    return list(islice(found, most))
