"""The report for a reader at a terminal: for each target the verdict, what breaks, what to do."""

import re
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from rich.text import Text

from volta_doctor.arch.report import ArchReport, Break, JudgedFile, TargetReport
from volta_doctor.arch.rules import carries
from volta_doctor.report import wrap
from volta_doctor.words import several

_STYLES = {
    "runs": "bold green",
    "runs after JIT": "bold cyan",
    "cannot run": "bold red",
    "not known": "bold magenta",
    "no device code": "bold",
}
_GATE_STYLES = {
    "has it": "bold green",
    "lacks it": "bold red",
    "not known": "bold magenta",
}
_TROUBLE = ("cannot run", "not known", "runs after JIT")
_SLOW = " (slow first start)"
# As a shell reads a line: what is quoted is one word, and so is a comment.
_WORD = re.compile(r"""(?<!\S)#.*|(?:'[^']*'|"[^"]*"|\S)+""")
_FEW = 3  # how many files of one verdict a short report shows


def render(report: ArchReport, file: TextIO, verbose: bool) -> str:
    """Return the report in the width and colours of `file`; without `verbose` only what matters."""

    def lines(width: int) -> Iterator[Text]:
        page = _Page(width, verbose)
        yield from page.head(report)
        for target in report.targets:
            yield Text()
            yield from page.target(target, report)

    return wrap.printed(file, lines)


class _Page(NamedTuple):
    """How wide and how full the report is."""

    width: int
    verbose: bool

    def head(self, report: ArchReport) -> Iterator[Text]:
        """Tell for which cards and which driver."""
        for card in report.cards:
            text = f"card: {card.name}, compute capability {card.capability} ({card.known_by})"
            yield from self.lines(text, 2)
        driver = report.driver or "not known, so not judged (--driver 580.95.05 names one)"
        yield from self.lines(f"driver: {driver}", 2)
        if not any(card.is_volta for card in report.cards):
            yield from self.lines("No Volta card: the files are judged, not what they run with.", 2)

    def target(self, target: TargetReport, report: ArchReport) -> Iterator[Text]:
        """Tell one target."""
        verdict = f"{target.verdict}{_SLOW * (target.verdict == 'runs after JIT')}"
        style = _STYLES[target.verdict]
        if target.required:
            wanted = ", ".join(f"sm_{arch}" for arch in report.require)
            verdict = target.required.replace("it", wanted)
            style = _GATE_STYLES[target.required]
        process = "process " * (target.kind == "process")
        for number, line in enumerate(self.lines(f"{verdict}: {process}{target.target}", 2)):
            line.stylize(style if number == 0 else "bold")
            yield line
        if target.required:
            yield from self.gate(target)
        if target.first_break:
            yield from self.broken(target.first_break)
        yield from self.findings(target)
        yield from self.files(target)
        yield from self.unread(target)

    def gate(self, target: TargetReport) -> Iterator[Text]:
        """Tell which files lack what is required, and how to build them anew."""
        lacking, told = [f for f in target.files if f.lacks], set[str]()
        shown = lacking if self.verbose else lacking[:_FEW]
        for file in shown:
            lacks = ", ".join(f"sm_{arch}" for arch in file.lacks)
            found = file.file.problem or f"no {lacks}, but {carries(file.file.code)}"
            told_so = f" ({file.unused})" * bool(file.unused)
            yield from self.lines(f"{_name(file, target)}: {found}{told_so}", 2, 4)
            if file.rebuild and file.rebuild not in told:
                told.add(file.rebuild)
                yield from self.command(file.rebuild)
        if len(lacking) > len(shown):
            yield from self.lines(f"and {len(lacking) - len(shown)} more (-v)", 2, 4)
        if target.required == "not known" and not lacking and not target.unread:
            yield from self.lines("No file has machine code.", 2, 4)

    def broken(self, first: Break) -> Iterator[Text]:
        """Tell the first edge that breaks and what mends it."""
        yield from self.lines(f"{first.edge}: {first.found}", 2, 4)
        yield from self.lines(f"change: {first.change}", 2, 4)
        for command in first.commands:
            yield from self.command(command)
        for text in first.then:
            yield from self.lines(f"then: {text}", 2, 4)
        if not first.then:
            yield from self.lines("Nothing else needs to change.", 2, 2)

    def findings(self, target: TargetReport) -> Iterator[Text]:
        """Tell what could not be judged, and with -v what follows from the first break."""
        first = target.first_break.check if target.first_break else ""
        for finding in target.findings:
            told = finding.status.value == "unknown" and not finding.folded_under
            if told or (self.verbose and finding.id != first):
                under = f", folded under {finding.folded_under}" if finding.folded_under else ""
                label = f"{finding.status.value} {finding.id}{under}"
                yield from self.lines(f"{label}: {finding.message}", 2, 4)

    def unread(self, target: TargetReport) -> Iterator[Text]:
        """Tell what was not looked at; in short where no finding has told."""
        told = any(f.status.value == "unknown" and not f.folded_under for f in target.findings)
        if told and not self.verbose:
            return
        for text in target.unread if self.verbose else target.unread[:_FEW]:
            yield from self.lines(f"not looked at: {text}", 2, 4)
        if target.unread[_FEW:] and not self.verbose:
            yield from self.lines(f"and {len(target.unread) - _FEW} more (-v)", 2, 4)

    def files(self, target: TargetReport) -> Iterator[Text]:
        """Tell the counts, then the files that do not simply run."""
        with_code = [f for f in target.files if f.file.code]
        of_others = [f for f in target.files if _is_others(f)]
        own = [f for f in target.files if not _is_others(f)]
        parts = [
            f"{number} {verdict.replace('runs', 'run') if number > 1 else verdict}"
            for verdict in ("runs", *reversed(_TROUBLE))
            if (number := sum(f.verdict == verdict for f in own))
        ]
        parts += [f"{len(of_others)} need not run"] if of_others else []
        looked = f"{several(target.looked_at, 'file')} looked at"
        counts = f": {', '.join(parts)}" if parts else ""
        yield from self.lines(f"{looked}, {len(with_code)} with device code{counts}", 2, 4)
        for verdict in (*_TROUBLE, "runs") if self.verbose else _TROUBLE * (not target.required):
            # The first edge that breaks names the files already.
            if self.verbose or verdict != "cannot run" or not target.first_break:
                told = [f for f in own if f.verdict == verdict and (self.verbose or not f.unused)]
                yield from self.few(told, target)
        # They are of interest where there is nothing else.
        if self.verbose or (target.verdict == "cannot run" and not target.first_break):
            yield from self.few(of_others, target)

    def few(self, files: list[JudgedFile], target: TargetReport) -> Iterator[Text]:
        """Tell files of one verdict; a rebuild line that several share is told once."""
        shown = files if self.verbose else files[:_FEW]
        told = set(target.first_break.commands if target.first_break else [])
        for file in shown:
            label = "need not run" if _is_others(file) else file.verdict
            on = f" on {file.card}" if file.card else ""
            yield from self.lines(f"{label}{on}: {_name(file, target)}", 2, 4)
            yield from self.lines("; ".join(filter(None, (file.reason, file.unused))), 4, 4)
            if self.verbose:
                yield from self.details(file)
            if file.rebuild and file.rebuild not in told:
                told.add(file.rebuild)
                yield from self.command(file.rebuild)
        if len(files) > len(shown):
            yield from self.lines(f"and {len(files) - len(shown)} more (-v)", 2, 2)

    def details(self, file: JudgedFile) -> Iterator[Text]:
        """Tell all that a file carries, and how it was built."""
        code, build = file.file.code, file.file.build
        yield from self.lines(f"carries {carries(code)}", 4, 6)
        said = {
            "PTX ISA": ", ".join(f"{isa} (compute_{a})" for a, isa in file.file.ptx_isa.items()),
            "nvcc": build.nvcc or "",
            "needs": ", ".join(file.file.needs),
        }
        for label, text in said.items():
            if text:
                yield from self.lines(f"{label} {text}", 4, 6)

    def command(self, line: str) -> Iterator[Text]:
        """Tell a command to copy."""
        return wrap.command(_WORD.findall(line), self.width, " " * 5, " " * 7)

    def lines(self, text: str, indent: int = 0, hanging: int | None = None) -> Iterator[Text]:
        """Wrap a text to the width."""
        return wrap.prose(text, self.width, indent, hanging)


def _is_others(file: JudgedFile) -> bool:
    return bool(file.unused) and file.verdict == "cannot run"


def _name(file: JudgedFile, target: TargetReport) -> str:
    """Return a file's path below its target."""
    path = file.file.path
    if not path.startswith(target.target):
        return path  # a process has them anywhere
    return path.removeprefix(target.target).lstrip("/!") or path.rsplit("/", 1)[-1]
