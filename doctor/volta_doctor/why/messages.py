"""Looks for the messages and symptoms of the tables in a case."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from volta_doctor.catalog.why import Diagnosis, Message, Symptom, diagnoses, symptoms
from volta_doctor.findings import Evidence
from volta_doctor.logs.patterns import Literals, Pattern
from volta_doctor.logs.readers import load
from volta_doctor.logs.search import Word
from volta_doctor.logs.text import squeeze
from volta_doctor.why.case import Case, Hit, Said, find_broken
from volta_doctor.why.conditions import holds, is_late

_MOST = 4  # lines of one message that are quoted
_AFTER = 12  # lines after a message that may belong to it


class Entry(NamedTuple):
    """A pattern of the tables, with its diagnosis and message, or its symptom."""

    pattern: Pattern
    diagnosis: Diagnosis | None = None
    message: Message | None = None
    symptom: Symptom | None = None


@cache
def entries() -> list[Entry]:
    """Return all patterns of the tables. Raises ValueError naming one that is no pattern."""
    of_messages = [
        Entry(Pattern(message.pattern), diagnosis, message)
        for diagnosis in diagnoses().values()
        for message in diagnosis.messages
    ]
    of_symptoms = [
        Entry(Pattern(pattern), symptom=symptom)
        for symptom in symptoms().values()
        for pattern in symptom.patterns
    ]
    return of_messages + of_symptoms


def words() -> Iterator[Word]:
    """Yield the literals by which an excerpt of a huge text is made."""
    for entry in entries():
        yield from (Word(literal, _AFTER) for literal in entry.pattern.literals)
    for reader in load():
        yield from (Word(hint, reader.after) for hint in reader.hints)


def look(case: Case) -> None:
    """Find messages and symptoms, and note in the case those whose conditions hold."""
    hits = _hits(case)
    found = [(entry, hit) for entry, hit in zip(entries(), hits, strict=True) if hit]
    for entry, hit in found:
        symptom = entry.symptom
        if (
            symptom
            and symptom.name not in case.symptoms
            and all(holds(case, condition) for condition in symptom.when)
        ):
            case.symptoms[symptom.name] = symptom, hit
    for late in (False, True):
        for entry, hit in found:
            message = entry.message
            if (
                message
                and entry.diagnosis
                and late == _asks_for_others(message)
                and all(holds(case, condition) for condition in message.when)
                and not any(holds(case, condition) for condition in message.unless)
            ):
                case.said.append(Said(entry.diagnosis.id, message, hit))


def _asks_for_others(message: Message) -> bool:
    return any(is_late(condition) for condition in (*message.when, *message.unless))


class _Finds:
    """The lines of one pattern, as they are found."""

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}
        self.evidence: dict[str, Evidence] = {}  # by what the line says: every worker says it
        self.count = 0
        self.order = (0, 0)


def _hits(case: Case) -> list[Hit | None]:
    every = entries()
    literals = _literals()
    finds: dict[int, _Finds] = {}
    for number, text in enumerate(case.printed):
        for line in text.lines:
            data = line.text.encode()
            for index in literals.owners(data):
                groups = next(every[index].pattern.lines(data), (None, 0))[0]
                if groups is None:
                    continue
                found = finds.get(index)
                if found is None:
                    found = finds[index] = _Finds()
                    found.groups, found.order = groups, (number, line.number)
                found.count += 1
                if len(found.evidence) < _MOST:
                    found.evidence.setdefault(line.body, text.evidence(line))
    broken = _broken(case, set(range(len(every))) - set(finds))
    hits: list[Hit | None] = [broken.get(index) for index in range(len(every))]
    for index, found in finds.items():
        seen = list(found.evidence.values())
        hits[index] = Hit(found.groups, seen, found.count, found.order)
    return hits


def _broken(case: Case, missing: Iterable[int]) -> dict[int, Hit]:
    """Look in broken lines for the patterns that no whole line has."""
    every, near = entries(), set[int]()
    for _, squeezed in case.squeezed:
        near.update(_squeezed_literals().owners(squeezed.data))
    hits = {index: find_broken(case, every[index].pattern) for index in near & set(missing)}
    return {index: hit for index, hit in hits.items() if hit}


@cache
def _literals() -> Literals:
    return Literals((entry.pattern.literals, index) for index, entry in enumerate(entries()))


@cache
def _squeezed_literals() -> Literals:
    return Literals(
        ([squeeze(literal) for literal in entry.pattern.literals], index)
        for index, entry in enumerate(entries())
    )
