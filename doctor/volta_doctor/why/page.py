"""The answer for a reader: the cause, the lines that prove it and the fix first, then the rest."""

from collections.abc import Iterator
from typing import NamedTuple, TextIO, TypeVar

from rich.text import Text

from volta_doctor.findings import PROBLEMS, Finding, Status
from volta_doctor.report import Report, wrap
from volta_doctor.report.groups import Group, grouped, place
from volta_doctor.words import few

T = TypeVar("T")

_STYLES = {"fail": "bold red", "unknown": "bold magenta", "warn": "bold yellow", "info": "cyan"}
_IDS = 6
_LINES = 4  # of evidence in a short answer
_LABELS = {"fail": "CAUSE", "unknown": "UNDETERMINED", "warn": "CAUSE", "info": "NOTE"}


def render(report: Report, file: TextIO, verbose: bool) -> str:
    """Return the answer in the width and colours of `file`; `verbose` tells all of it."""

    def lines(width: int) -> Iterator[Text]:
        page = _Page(width, verbose)
        found = [finding for finding in report.findings if finding.status in PROBLEMS]
        for number, group in enumerate(grouped(found, lambda finding: not finding.folded_under)):
            follow = [f for f in found if f.folded_under in group.ids and f.id in group.hides]
            yield from page.cause(group, follow, first=number == 0)
            yield Text()
        yield from page.foot(report, found)

    return wrap.printed(file, lines)


class _Page(NamedTuple):
    width: int
    verbose: bool

    def cause(self, group: Group, follow: list[Finding], first: bool) -> Iterator[Text]:
        """Tell one cause, on all subjects that have it."""
        finding, status = group.first, group.first.status.value
        label = _LABELS[status] if first else f"ALSO {status.upper()}"
        said = [
            f"{message} ({few(subjects)})" if subjects and not finding.missing else message
            for message, subjects in group.messages.items()
        ]
        for number, line in enumerate(
            self.lines(f"{label}: {' '.join(self.shown(said))} [{finding.id}]")
        ):
            if number == 0:
                line.stylize(_STYLES[status], 0, len(label))
            yield line
        if finding.confidence:
            yield from self.item("sure", f"{finding.confidence.value}: {finding.because}")
        evidence = self.shown(group.evidence)
        for seen in evidence:
            yield from self.item("proof", f"{place(seen)}: {seen.text}")
        if more := len(group.evidence) - len(evidence):
            yield from self.item("proof", f"and {more} more (-v)")
        for text in finding.contradicts or ():
            yield from self.item("but", text)
        for text in finding.missing or ():
            yield from self.item("bring", text)
        if not finding.missing:
            yield from self.item("fix", f"{finding.remedy.fix} (risk: {finding.remedy.risk})")
        for seen in self.shown(finding.consequences or []):
            yield from self.item("follows", f"{place(seen)}: {seen.text}")
        if follow:
            yield from self.item("follows", self.listed(follow))

    def shown(self, items: list[T]) -> list[T]:
        """Return the first of many."""
        return items if self.verbose else items[:_LINES]

    def foot(self, report: Report, found: list[Finding]) -> Iterator[Text]:
        """Tell what was looked at and is in order, by which rules, and what to do next."""
        fine = [finding for finding in report.findings if finding.status is Status.OK]
        if fine:
            yield from self.item("in order", self.listed(fine), 0)
        if report.findings:
            yield from self.item("judged as", report.profile.reason, 0)
        for note in report.notes:
            yield from self.item("note", note, 0)
        if found and found[0].missing:
            yield from self.item("next", "volta-doctor why, with what it asks for as more files", 0)
        elif found:
            yield from self.item("next", f"volta-doctor explain {found[0].id}", 0)

    def listed(self, findings: list[Finding]) -> str:
        """List findings by their ids, or with what they say."""
        told = [f"{f.id}: {f.message}" if self.verbose else f.id for f in findings]
        return few(list(dict.fromkeys(told)), None if self.verbose else _IDS)

    def item(self, label: str, text: str, indent: int = 2) -> Iterator[Text]:
        """Wrap a labelled text."""
        return self.lines(f"{label}: {text}", indent, indent + 2)

    def lines(self, text: str, indent: int = 0, hanging: int | None = None) -> Iterator[Text]:
        """Wrap a text to the width."""
        return wrap.prose(text, self.width, indent, hanging)
