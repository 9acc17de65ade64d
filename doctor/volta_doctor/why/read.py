"""From names of files to a case: texts, saved snapshots and saved reports."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from volta_doctor.facts.model import Snapshot, SnapshotError, decode
from volta_doctor.findings import Finding
from volta_doctor.logs import excerpt, readers
from volta_doctor.logs.sources import SourceError
from volta_doctor.logs.text import Text
from volta_doctor.why import messages
from volta_doctor.why.case import Case

_OWN = re.compile(rb'\s*\{\s*"schema":\s*\d+,\s*"tool":\s*"volta-doctor')
_UNREAD = "{}: the other files were judged"
_SECOND = "{}: a second snapshot is not judged with the first: volta-doctor diff compares two"
_SOURCE = "{}: this is a program's source, so its messages are none that a program has printed"


class Files(NamedTuple):
    """What was read: the case, the findings of saved reports, and what is to be said of a file."""

    case: Case
    snapshot: Snapshot | None
    findings: list[Finding]
    notes: list[str]


class _Report(msgspec.Struct):
    schema: int
    findings: list[Finding]


def read(paths: Sequence[str]) -> Files:
    """Read all files of a case, each once; what cannot be read is a note beside the others.

    Raises SourceError where nothing can be read.
    """
    words = list(messages.words())
    texts: list[Text] = []
    snapshots: dict[str, Snapshot] = {}
    findings: list[Finding] = []
    notes: list[str] = []
    unread: list[str] = []
    once = dict.fromkeys(paths)
    for path in once:
        try:
            text = excerpt.read(path, words)
            saved = _saved(text)
        except SourceError as error:
            unread.append(str(error))
            continue
        if isinstance(saved, Snapshot):
            snapshots[text.name] = saved
        elif saved is not None:
            findings += saved
        else:
            texts.append(text)
            notes += [text.note] if text.note else []
            notes += [_SOURCE.format(text.name)] if text.is_source else []
    if len(unread) == len(once):
        raise SourceError("; ".join(unread))
    notes += [_UNREAD.format(problem) for problem in unread]
    notes += [_SECOND.format(name) for name in list(snapshots)[1:]]
    snapshot = next(iter(snapshots.values()), None)
    parts = [part for text in texts for part in readers.read(text)]
    facts = snapshot.facts if snapshot else None
    return Files(Case(texts, parts, facts), snapshot, findings, notes)


def _saved(text: Text) -> Snapshot | list[Finding] | None:
    """Return what a snapshot or a report holds; None of a text. Raises SourceError."""
    json = text.data if text.data.lstrip()[:1] == b"{" else b""
    problem = "why reads snapshots, and reports of check and why"
    try:
        if b'"facts"' in json:
            return decode(json)
    except SnapshotError as error:
        problem = f"{error}; take it anew with this volta-doctor"
    try:
        if b'"findings"' in json:
            return msgspec.json.decode(json, type=_Report).findings
    except msgspec.DecodeError as error:
        problem = f"not a whole report: {error}; write it anew"
    if _OWN.match(json):
        raise SourceError(f"{text.name}: {problem}")
    return None
