"""The report for a reader at a terminal: problems first, one line that sums up, plain ASCII."""

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from volta_doctor.findings import HOST, SEVERITY, Finding, Status, Waived
from volta_doctor.report import Report

_STYLES = {
    Status.FAIL: "bold red",
    Status.UNKNOWN: "bold magenta",
    Status.WARN: "bold yellow",
    Status.INFO: "cyan",
    Status.OK: "green",
    Status.SKIP: "dim",
}
_WITH_REMEDY = (Status.FAIL, Status.WARN, Status.INFO)
_QUIET = (Status.OK, Status.SKIP)
# How much of a long list a short report shows.
_FEW = 3


def render(report: Report, file: TextIO, verbose: bool) -> str:
    """Return the table, in the width and colours of `file`.

    Without `verbose`: no ok, no skip, nothing folded, little evidence.
    """
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    profile, summary = report.profile, report.summary
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7, no_wrap=True)
    table.add_column(overflow="fold")
    for group in grouped(report.findings, verbose):
        table.add_row(_label(group[0]), body(group, verbose))
    counts = ", ".join(f"{getattr(summary, s.value)} {s.value}" for s in SEVERITY)
    counts += f", {summary.waived} waived" if summary.waived else ""
    folded = f" ({summary.folded} folded under their cause)" if summary.folded else ""
    with console.capture() as capture:
        console.print(Text(f"profile {profile.name}: {profile.reason}", style="bold"))
        console.print(Text(f"{report.host or 'unnamed host'}, {report.taken}, {report.tool}\n"))
        if table.row_count:
            console.print(table)
            console.print()
        for note in report.notes:
            console.print(Text(f"note: {note}"))
        last_line = f"{summary.verdict}: {counts}{folded}; profile {profile.name}"
        console.print(Text(last_line, style="bold"))
    # rich pads every cell to the full width; a log or a mail wants none of that
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def grouped(findings: list[Finding], verbose: bool) -> list[list[Finding]]:
    """Put together the findings that one paragraph can tell, in rank order.

    What one check found alike on several subjects goes together, and so do checks that could not
    tell, or were skipped, for one and the same reason.
    """
    groups: dict[tuple[Status, Waived | None, str, str], list[Finding]] = {}
    for finding in findings:
        if not verbose and (finding.status in _QUIET or finding.folded_under):
            continue
        check_id = "" if finding.status in (Status.UNKNOWN, Status.SKIP) else finding.id
        key = (finding.status, finding.waived, check_id, finding.message)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def body(group: list[Finding], verbose: bool) -> Text:
    """Tell one group: whom it concerns, what was found and seen, and what to do."""
    first = group[0]
    text = Text(", ".join(dict.fromkeys(finding.id for finding in group)), style="bold")
    subjects = [finding.subject for finding in group if finding.subject != HOST]
    if subjects:
        text.append(f" [{_few(list(dict.fromkeys(subjects)), verbose)}]", style="not bold")
    shown = [first.message]
    if first.waived:
        by = f" by {first.waived.by}" if first.waived.by else ""
        shown.append(
            f"{first.status.value}, waived{by} until {first.waived.expires}: {first.waived.reason}"
        )
        if not verbose:
            return text.append("".join(f"\n{line}" for line in shown), style="not bold")
    if verbose or first.status in _WITH_REMEDY:
        evidence = list(dict.fromkeys(e for finding in group for e in finding.evidence))
        for seen in evidence if verbose else evidence[:_FEW]:
            line = f":{seen.line}" if seen.line else ""
            shown.append(f"seen: {seen.source}{line}: {seen.text}")
    if first.status in _WITH_REMEDY:
        shown.append(f"fix: {first.remedy.fix} (risk: {first.remedy.risk})")
    if hidden := list(dict.fromkeys(i for finding in group for i in finding.hides)):
        shown.append(f"hides: {', '.join(hidden)}")
    if first.folded_under:
        shown.append(f"follows from: {first.folded_under}")
    return text.append("".join(f"\n{line}" for line in shown), style="not bold")


def _label(finding: Finding) -> Text:
    if finding.waived:
        return Text("WAIVED", style="dim")
    return Text(finding.status.value.upper(), style=_STYLES[finding.status])


def _few(items: list[str], verbose: bool) -> str:
    if verbose or len(items) <= _FEW:
        return ", ".join(items)
    return f"{', '.join(items[:_FEW])} and {len(items) - _FEW} more"
