"""The tables of what texts tell are sound: patterns, conditions, names, examples."""

import re
import string
from pathlib import Path

import pytest
import yaml

from volta_doctor.catalog.why import Message, diagnoses, rows, symptoms
from volta_doctor.logs.text import parse
from volta_doctor.why import rules
from volta_doctor.why.case import Case, find
from volta_doctor.why.conditions import NAMED, is_late
from volta_doctor.why.messages import Entry, entries

DATA = Path(__file__).parents[2] / "data/doctor/why"
VARIANTS = 10
MESSAGES = [entry for entry in entries() if entry.message]


def name(entry: Entry) -> str:
    owner = entry.diagnosis.id if entry.diagnosis else entry.symptom and entry.symptom.name
    return f"{owner}: {entry.pattern.source[:40]}"


@pytest.mark.parametrize("entry", MESSAGES, ids=name)
def test_a_message_matches_its_examples(entry: Entry) -> None:
    assert entry.message is not None
    assert entry.message.examples
    for example in entry.message.examples:
        hit = find(Case([parse("example", example.encode())], []), entry.pattern)
        assert hit, example
        told = entry.message.says.format_map(hit.groups)
        assert "  " not in told, told
        assert " ." not in told, told


@pytest.mark.parametrize("entry", MESSAGES, ids=name)
def test_a_message_names_what_there_is(entry: Entry) -> None:
    message = entry.message
    assert isinstance(message, Message)
    fields = {
        field
        for text in (message.says, message.subject, message.contradicts)
        for _, field, _, _ in string.Formatter().parse(text)
        if field
    }
    assert fields <= set(re.findall(r"\(\?P<(\w+)>", message.pattern))
    assert bool(message.because) or message.confidence == "certain"
    for condition in (*message.when, *message.unless):
        if is_late(condition):
            kind, of = condition.split(":", 1)
            assert of in (rows() if kind == "found" else symptoms())
        else:
            assert condition in NAMED or re.fullmatch(r"/.+/", condition)


@pytest.mark.parametrize("symptom", symptoms().values(), ids=lambda s: s.name)
def test_a_symptom_is_shown_by_its_examples(symptom) -> None:
    assert symptom.bring
    assert {*symptom.suspects, *symptom.explained_by} <= {*rows()}
    patterns = [e.pattern for e in entries() if e.symptom is symptom]
    for example in symptom.examples:
        case = Case([parse("example", example.encode())], [])
        assert any(find(case, pattern) for pattern in patterns), example


def test_what_hides_and_is_hidden_is_there() -> None:
    for row in rows().values():
        assert {*row.hides} <= {*rows()}, row.id


def test_every_rule_is_of_a_diagnosis() -> None:
    assert rules.load().keys() <= diagnoses().keys()


@pytest.mark.parametrize("check_id", diagnoses())
def test_each_has_ten_variants(check_id: str) -> None:
    cases = yaml.safe_load((DATA / f"{check_id}.yaml").read_text())
    assert len(cases) >= VARIANTS
    assert sum(check_id in case["primary"] for case in cases) >= VARIANTS - 2
    assert len({case["name"] for case in cases}) == len(cases)
