"""The report for a reader at a terminal: the verdict, the problems, what to do; plain ASCII."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from rich.text import Text

from volta_doctor.findings import PROBLEMS, Finding, Status, Step
from volta_doctor.report import Report, wrap
from volta_doctor.report.groups import Group, calls_for_action, grouped, lacks_rights, place
from volta_doctor.words import few

_STYLES = {
    "fail": "bold red",
    "unknown": "bold magenta",
    "warn": "bold yellow",
    "info": "cyan",
    "ok": "green",
    "skip": "dim",
    "waived": "dim",
}
_VERDICT_STYLES = {0: "bold green", 1: "bold yellow", 2: "bold red", 3: "bold magenta"}
_QUIET = (Status.OK, Status.SKIP)
_FEW = 3  # how much of a long list a short report shows


def render(report: Report, file: TextIO, verbose: bool) -> str:
    """Return the report in the width and colours of `file`.

    Without `verbose`: no ok, no skip, the mere names of what is folded, little evidence.
    """
    folded = [finding for finding in report.findings if finding.folded_under]

    def lines(width: int) -> Iterator[Text]:
        page = _Page(width, verbose)
        yield from page.head(report)
        for group in grouped(report.findings, page.has_paragraph):
            hides = group.hides
            follow = [f for f in folded if f.folded_under in group.ids and f.id in hides]
            yield Text()
            yield from page.paragraph(group, follow)
        yield Text()
        yield from page.foot(report)

    return wrap.printed(file, lines)


class _Page(NamedTuple):
    """How wide and how full the report is."""

    width: int
    verbose: bool

    @property
    def limit(self) -> int | None:
        """How many items of a list are shown; None is all."""
        return None if self.verbose else _FEW

    def has_paragraph(self, finding: Finding) -> bool:
        """Say whether a finding is told, and not merely named under its cause."""
        return not finding.folded_under and (self.verbose or finding.status not in _QUIET)

    def head(self, report: Report) -> Iterator[Text]:
        """Tell the verdict, then of what host, by what rules and when."""
        summary = report.summary
        verdict = f"{report.judged or 'unnamed host'}: {summary.verdict}"
        for line in self.lines(f"{verdict} ({summary.told})"):
            line.stylize(_VERDICT_STYLES[summary.exit_code])
            yield line
        for text in report.about(self.verbose):
            yield from self.lines(text)
        for note in report.notes:
            yield from self.lines(f"note: {note}")

    def paragraph(self, group: Group, follow: list[Finding]) -> Iterator[Text]:
        """Tell one group: what was found and seen, what to do, and what follows from it."""
        label = group.label.upper()
        for number, line in enumerate(self.lines(f"{label} {few(group.ids, self.limit)}", 2)):
            line.stylize("bold")
            if number == 0:
                line.stylize(_STYLES[group.label], 0, len(label))
            yield line
        yield from self.found(group)
        if group.first.waived and not self.verbose:
            return
        if self.verbose or calls_for_action(group.first):
            evidence = group.evidence
            for seen in evidence[: self.limit]:
                yield from self.item("seen", f"{place(seen)}: {seen.text}")
            if len(evidence) > len(evidence[: self.limit]):
                yield from self.item("", f"and {len(evidence) - _FEW} more (-v)")
        if calls_for_action(group.first):
            remedy = group.first.remedy
            yield from self.item("fix", f"{remedy.fix} (risk: {remedy.risk})")
            steps = group.steps
            for step in steps[: self.limit]:
                yield from self.step(step)
            if len(steps) > len(steps[: self.limit]):
                yield from self.item("", f"and {len(steps) - _FEW} more (volta-doctor fix)")
        if follow and not self.verbose:
            names = list(dict.fromkeys(finding.id for finding in follow))
            yield from self.item("hides", few(names, 2 * _FEW))
        elif follow:
            for below in grouped(follow, lambda _: True):
                said = "; ".join(below.messages)
                yield from self.item("hides", f"{below.label} {', '.join(below.ids)}: {said}")

    def found(self, group: Group) -> Iterator[Text]:
        """Tell what was found on which subjects, and why it is borne with."""
        messages = list(group.messages.items())
        if len(messages) == 1:
            ((message, subjects),) = messages
            yield from self.lines(message, 2, 2)
            if subjects:
                yield from self.item("on", few(subjects, self.limit))
        else:
            for message, subjects in messages[: self.limit]:
                where = f"{few(subjects, self.limit)}: " if subjects else ""
                yield from self.lines(f"{where}{message}", 2, 4)
            if len(messages) > len(messages[: self.limit]):
                yield from self.lines(f"and {len(messages) - _FEW} more (-v)", 2)
        if waived := group.first.waived:
            by = f" by {waived.by}" if waived.by else ""
            status = group.first.status.value
            yield from self.lines(
                f"{status}, waived{by} until {waived.expires}: {waived.reason}", 2, 2
            )

    def step(self, step: Step) -> Iterator[Text]:
        """Tell a step so that it can be copied into a shell."""
        if step.run:
            yield from self.command("run", step.run)
        else:
            yield from self.item("write", step.write)
            if self.verbose:
                yield from (Text(f"    {line}") for line in step.content.splitlines())
        if step.undo and self.verbose:
            yield from self.command("undo", step.undo)

    def command(self, label: str, argv: list[str]) -> Iterator[Text]:
        """Tell a command to copy."""
        return wrap.command(map(shlex.quote, argv), self.width, f"  {label}:", "     ")

    def foot(self, report: Report) -> Iterator[Text]:
        """Tell what to do next."""
        problems = [f for f in report.findings if f.status in PROBLEMS and not f.waived]
        blind = {finding.id for finding in problems if lacks_rights(finding)}
        steps = {finding.id for finding in problems if finding.remedy.steps}
        advice = []
        if blind:
            advice.append(
                (f"sudo volta-doctor {report.verb}", f"{_checks(blind)} lack the rights to look")
            )
        if steps:
            advice.append(("volta-doctor fix", f"a plan for {few(sorted(steps), _FEW)}"))
        if problems:
            worst = next(filter(calls_for_action, problems), problems[0])
            advice.append((f"volta-doctor explain {worst.id}", "its rule and source"))
        if not self.verbose:
            advice.append((f"volta-doctor {report.verb} -v", "every finding with all its evidence"))
        if report.summary.exit_code == 0:
            advice = []
            yield from self.lines("Nothing has to be done.")
        advice += report.further
        if advice:
            yield Text("Next:", style="bold")
        column = max((len(words) for words, _ in advice), default=0)
        for words, why in advice:
            if column <= self.width // 2:
                yield from self.lines(f"{words.ljust(column)}  {why}", 2, 4)
            else:
                yield from wrap.command(
                    map(shlex.quote, shlex.split(words)), self.width, " ", "     "
                )
                yield from self.lines(why, 4, 4)

    def item(self, label: str, text: str) -> Iterator[Text]:
        """Wrap a labelled text, its further lines indented."""
        return self.lines(f"{label}: {text}" if label else text, 2, 4)

    def lines(self, text: str, indent: int = 0, hanging: int | None = None) -> Iterator[Text]:
        """Wrap a text to the width."""
        return wrap.prose(text, self.width, indent, hanging)


def _checks(ids: set[str]) -> str:
    return f"{len(ids)} checks" if len(ids) > 1 else next(iter(ids))
