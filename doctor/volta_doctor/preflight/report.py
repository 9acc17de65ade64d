"""What `volta-doctor model` says: a report with the model it is about; schema.json describes it."""

import shlex

from volta_doctor import report
from volta_doctor.catalog import compat
from volta_doctor.facts.model import Snapshot
from volta_doctor.findings import Finding, Status
from volta_doctor.preflight.model import Group, Model, told
from volta_doctor.preflight.subject import Subject
from volta_doctor.profile import Profile
from volta_doctor.report import Report
from volta_doctor.words import gib, several

# Areas that a plan has an answer to; what fails in another one is wrong with the model itself.
_PLANNED = ("parallel", "memory", "engine")


class ModelReport(Report, frozen=True, kw_only=True):
    """What `volta-doctor model` says of one checkpoint.

    `profile` says which cards were meant, and `engine` which engine, empty where none was named.
    """

    model: Model
    engine: str = ""

    @property
    def verb(self) -> str:
        """The words after `volta-doctor` that made it, without its flags."""
        return f"model {shlex.quote(self.model.path)}"

    @property
    def judged(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def labels(self) -> dict[str, str]:
        """A host has the series of many models."""
        return {"model": self.model.path}

    def about(self, verbose: bool) -> list[str]:
        """What the model is, how much of it was read, and what it was held against."""
        model = self.model
        parts = [model.architecture or "architecture not told"]
        if model.parameters:
            parts.append(f"{_count(model.parameters)} parameters")
        if model.layers:
            parts.append(several(model.layers, "layer"))
        if model.bytes:
            parts.append(f"{gib(model.bytes)} in {several(model.files, 'file')} ({model.kind})")
        elif model.kind == "index":
            parts.append("no file with weights here, only their index")
        lines = [", ".join(parts)]
        if model.formats:
            shares = [f"{s.modules} {s.format} ({gib(s.bytes)})" for s in model.formats]
            lines.append(f"modules: {', '.join(shares)}")
        if verbose:
            lines += [_row(group) for group in model.modules]
        lines.append(f"read: {_read(model)}")
        engine = self.engine or "any engine (--engine names one)"
        return [*lines, f"for: {self.profile.reason}; {engine}"]

    @property
    def further(self) -> list[tuple[str, str]]:
        """A plan, where nothing is wrong with the model itself."""
        broken = any(
            finding.area not in _PLANNED and not finding.waived
            for finding in self.findings
            if finding.status in (Status.FAIL, Status.UNKNOWN)
        )
        if broken:
            return []
        words = ["volta-stack", "plan", self.model.path]
        if self.profile.name in compat().cards:
            words += ["--gpu", self.profile.name, "--count", str(len(self.profile.cards))]
        return [(shlex.join(words), "engine, flags, memory and speed")]


def build(
    subject: Subject, snapshot: Snapshot, findings: list[Finding], notes: list[str]
) -> ModelReport:
    """Put together the report on ranked findings; `snapshot` is of this host, or empty."""
    return ModelReport(
        schema=report.SCHEMA,
        tool=snapshot.tool,
        taken=snapshot.taken,
        host=snapshot.facts.host.data.hostname if snapshot.facts.host.data else "",
        profile=_profile(subject),
        summary=report.summary(findings),
        findings=findings,
        notes=notes,
        model=told(subject),
        engine=subject.engine.name if subject.engine else "",
    )


def _profile(subject: Subject) -> Profile:
    cards = subject.cards
    if cards is None:
        reason = "no GPU named (--gpu) and none here, so what depends on it is skipped"
        return Profile(name="any", gpu="unknown", reason=reason)
    title = compat().cards[cards.model].title if cards.model else "Volta cards"
    names = [f"{title}, {gib(total)}" for total in cards.total]
    reason = f"{len(cards.total)} x {title} ({cards.told_by})"
    return Profile(name=cards.model or "volta", gpu="volta", reason=reason, cards=names)


def _read(model: Model) -> str:
    read = model.read
    if not read.headers:
        return "configs and the index" if model.kind == "index" else "no header of weights"
    headers = f"headers of {several(read.headers, 'file')}"
    if not read.scale_bytes_in_all:
        return headers
    return f"{headers}, {gib(read.scale_bytes)} of {gib(read.scale_bytes_in_all)} of scales"


def _row(group: Group) -> str:
    blocks = " x ".join(str(size) if size else "all" for size in group.group or ())
    scales = f", a scale for {blocks}" if blocks else ""
    return f"  {group.modules} x {group.format}  {group.name}  {group.shape}{scales}"


def _count(number: int) -> str:
    for name, size in (("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,}"
