"""Markdown for an issue or a wiki: verdict, a table of the problems, and the details folded."""

import re
from collections.abc import Iterator
from typing import TextIO

from volta_doctor.findings import Status
from volta_doctor.report import Report
from volta_doctor.report.groups import Group, calls_for_action, command, grouped, place
from volta_doctor.words import few, printable

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#])")
_QUIET = (Status.OK, Status.SKIP)
_FEW = 3


def render(report: Report, _file: TextIO, verbose: bool) -> str:
    """Return the report; without `verbose` no ok, no skip, nothing folded."""
    groups = grouped(
        report.findings,
        lambda f: verbose or not (f.folded_under or f.status in _QUIET),
    )
    text = "\n".join([*_head(report, verbose), *_table(groups), *_details(groups)])
    return printable(text).rstrip("\n")


def _head(report: Report, verbose: bool) -> Iterator[str]:
    summary = report.summary
    yield f"## {_text(report.judged or 'unnamed host')}: {summary.verdict}\n"
    yield f"{summary.told}.\n"
    for line in report.about(verbose):
        yield f"{_text(line[:1].upper() + line[1:])}  "
    yield ""
    for note in report.notes:
        yield f"> {_text(note)}\n"


def _table(groups: list[Group]) -> Iterator[str]:
    if not groups:
        return
    yield "| | check | found | fix |"
    yield "|---|---|---|---|"
    for group in groups:
        remedy = group.first.remedy
        fix = f"{_text(remedy.fix)} *{remedy.risk}*" if calls_for_action(group.first) else ""
        ids = "<br>".join(_text(check_id) for check_id in group.ids)
        yield f"| {group.label.upper()} | {ids} | {_found(group)} | {fix} |"
    yield ""


def _found(group: Group) -> str:
    told = []
    for message, subjects in group.messages.items():
        where = f"{few(subjects, _FEW)}: " if subjects else ""
        told.append(_text(f"{where}{message}"))
    if waived := group.first.waived:
        told.append(f"*Waived until {_text(waived.expires)}: {_text(waived.reason)}*")
    return "<br>".join(told)


def _details(groups: list[Group]) -> Iterator[str]:
    for group in groups:
        lines = [f"{place(seen)}: {seen.text}" for seen in group.evidence]
        commands = [command(step) for step in group.steps if step.run]
        if not (lines or commands or group.hides):
            continue
        yield f"<details><summary>{_html(', '.join(group.ids))}</summary>\n"
        for title, content in (("Seen", lines), ("To run", commands)):
            if content:
                yield f"{title}:\n\n{_fenced(content)}\n"
        if group.hides:
            yield f"Hides: {_text(', '.join(group.hides))}\n"
        yield "</details>\n"


def _text(text: str) -> str:
    """Escape what Markdown would take for markup, and keep it on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _fenced(lines: list[str]) -> str:
    """Put lines into a code block whose fence none of them can close."""
    text = "\n".join(lines)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
