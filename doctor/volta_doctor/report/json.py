"""The report for a program: JSON, which schema.json beside this file describes."""

from typing import TextIO

import msgspec

from volta_doctor.report import Report


def render(report: Report, _file: TextIO, _verbose: bool) -> str:
    """Return the whole report, whatever is asked."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
