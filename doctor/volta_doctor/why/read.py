"""From names of files to a case: texts, saved snapshots and saved reports."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from volta_doctor.facts.model import Facts, Snapshot, SnapshotError, decode
from volta_doctor.findings import Finding
from volta_doctor.logs import excerpt, readers
from volta_doctor.logs.text import Text
from volta_doctor.why import messages
from volta_doctor.why.case import Case

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
    """Read all files of a case. Raises SourceError."""
    words = list(messages.words())
    texts: list[Text] = []
    snapshot: Snapshot | None = None
    findings: list[Finding] = []
    notes: list[str] = []
    for path in paths:
        text = excerpt.read(path, words)
        json = text.data if text.data.lstrip()[:1] == b"{" else b""
        if b'"facts"' in json and (taken := _snapshot(json)):
            snapshot = snapshot or taken
        elif b'"findings"' in json and (saved := _report(json)):
            findings += saved
        else:
            texts.append(text)
            notes += [text.note] if text.note else []
            notes += [_SOURCE.format(text.name)] if text.is_source else []
    parts = [part for text in texts for part in readers.read(text)]
    facts: Facts | None = snapshot.facts if snapshot else None
    return Files(Case(texts, parts, facts), snapshot, findings, notes)


def _snapshot(data: bytes) -> Snapshot | None:
    try:
        return decode(data)
    except SnapshotError:
        return None


def _report(data: bytes) -> list[Finding] | None:
    try:
        return msgspec.json.decode(data, type=_Report).findings
    except msgspec.DecodeError:
        return None
