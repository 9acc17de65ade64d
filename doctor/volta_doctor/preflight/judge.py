"""A subject → findings: runs the checks of a checkpoint, gathers, folds and ranks what they say."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

from msgspec import structs

from volta_doctor import verdict
from volta_doctor.catalog import Row
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts
from volta_doctor.findings import HOST, MODEL, PROBLEMS, Evidence, Finding
from volta_doctor.folding import fold, rank
from volta_doctor.preflight.checks import MODEL_CHECKS
from volta_doctor.preflight.subject import Subject
from volta_doctor.waivers import Waiver, waive
from volta_doctor.words import few, one_line
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.index import INDEX

_ALIKE = 3  # findings of one check that differ in their numbers alone; more are told as one
_NAME, _SENTENCE = 200, 1000  # characters that are told of a name, and of a sentence with names
NO_CARDS = "No GPU was named (--gpu), and this host has no Volta card."
_NO_ENGINE = "No engine was named (--engine)."
_NO_HOST = "The host that is to serve was not looked at: run this there, without --gpu."
_NOTHING = (
    "There is no checkpoint in {}: neither *.safetensors nor model.safetensors.index.json,"
    " *.gguf or weights of torch (*.bin, *.pt)."
)


def judge(
    subject: Subject, rows: Iterable[Row], waivers: Sequence[Waiver] = (), day: date = date.min
) -> list[Finding]:
    """Return the findings of the given checks, rank 1 first; waivers are held against `day`."""
    findings = [told for row in rows for told in gathered(examine(subject, row))]
    folded = fold(waive(findings, waivers, day), bearing(subject, findings), model_checks())
    return rank([_named(finding) for finding in folded])


def examine(subject: Subject, row: Row) -> list[Finding]:
    """Run one check: skipped where what it judges by was not named, unknown where not told."""
    contents = subject.checkpoint.contents
    if contents.kind == "none":
        return [row.unknown(_NOTHING.format(one_line(str(contents.path), _NAME)))]
    if reason := _lacking(subject, row):
        return [row.skip(reason)]
    if reason := _untold(subject.checkpoint, row):
        return [row.unknown(reason)]
    nothing = "Nothing is told that could be judged."
    return verdict.of(row, lambda: MODEL_CHECKS[row.id](subject, row), nothing)


def _lacking(subject: Subject, row: Row) -> str:
    if "cards" in row.needs and subject.cards is None:
        return NO_CARDS
    if "engine" in row.needs and subject.engine is None:
        return _NO_ENGINE
    return _NO_HOST if "host" in row.needs and subject.host == Facts() else ""


def _untold(checkpoint: Checkpoint, row: Row) -> str:
    if "modules" in row.needs and not checkpoint.modules:
        return "No header could be read that tells of tensors."
    if "architecture" in row.needs and checkpoint.architecture == Architecture():
        return "Neither config.json nor GGUF's metadata tells what the model is."
    return ""


def gathered(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Tell findings that differ in their numbers alone as one: thousands of tensors share a fault.

    What it counts is then how many there are.
    """
    alike: dict[object, list[Finding]] = {}
    for finding in findings:
        words = re.sub(r"\d+", "#", finding.message)
        alike.setdefault((finding.id, finding.status, words), []).append(finding)
    for same in alike.values():
        if len(same) <= _ALIKE:
            yield from same
            continue
        others = few([one_line(finding.subject, _NAME) for finding in same[1:]])
        message = f"{same[0].message} The like is so of {len(same) - 1} more: {others}."
        yield structs.replace(same[0], message=message, count=len(same))


def bearing(subject: Subject, findings: Sequence[Finding]) -> dict[str, set[str]]:
    """Return, by subject, those whose troubles are its own too: whatever is told of its files."""
    found: dict[str, set[str]] = {}
    by_file: dict[str, set[str]] = {}
    problems = [finding for finding in findings if finding.status in PROBLEMS]
    for finding in problems:
        for file in _files(subject, finding):
            by_file.setdefault(file, set()).add(finding.subject)
    for finding in problems:
        near = found.setdefault(finding.subject, set())
        near.update(*(by_file[file] for file in _files(subject, finding)))
    return found


def _files(subject: Subject, finding: Finding) -> set[str]:
    """Return the files that a finding is about: its own, its tensor's, those of its evidence."""
    contents, name = subject.checkpoint.contents, finding.subject
    info = contents.tensors.get(name)
    names = [name, *(seen.source for seen in finding.evidence), *_shards(contents, name)]
    names += [str(info.file)] if info else []
    return {text.rsplit("/", 1)[-1] for text in names if text} - {HOST, MODEL}


def _shards(contents: Contents, name: str) -> set[str]:
    """Return where the index says that a tensor is, or a module or layer; it itself if nowhere."""
    if name in contents.index:
        found = {contents.index[name]}
    elif name in contents.tensors or "." not in name:
        return set()
    else:
        inside = f".{name}."
        near = ((tensor, shard) for tensor, shard in contents.index.items() if name in tensor)
        found = {shard for tensor, shard in near if inside in f".{tensor}."}
    there = {file.name for file in contents.files}
    return found | ({INDEX} if found - there else set())


def _named(finding: Finding) -> Finding:
    """Make a finding fit to print: names in a checkpoint are whatever its author wrote."""
    row = model_checks()[finding.id]
    whole = finding.subject == HOST and "host" not in row.needs
    return structs.replace(
        finding,
        subject=MODEL if whole else one_line(finding.subject, _NAME),
        message=one_line(finding.message, _SENTENCE),
        evidence=[
            Evidence(one_line(seen.source, _NAME), one_line(seen.text, _SENTENCE), seen.line)
            for seen in finding.evidence
        ],
    )
