"""What RE2 rules out before a rule's regex is tried holds no match of it."""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
import yaml

from volta_doctor import why
from volta_doctor.logs.text import Joined, parse
from volta_doctor.why import sieve

DATA = Path(__file__).parents[2] / "data/doctor/why"


def regexes() -> list[re.Pattern[str]]:
    names = [found.name for found in walk_packages(why.__path__, f"{why.__name__}.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    found = {value for value in values if isinstance(value, re.Pattern)}
    return [regex for regex in found if isinstance(regex.pattern, str)]


@pytest.fixture(scope="module")
def text() -> Joined:
    cases = [c for p in sorted(DATA.glob("*.yaml")) for c in yaml.safe_load(p.read_text())]
    return Joined(parse("all", "\n".join(case.get("text", "") for case in cases).encode()))


def test_no_match_is_lost(text: Joined) -> None:
    for regex in regexes():
        kept = set(sieve.lines(text, regex))
        lost = [line for line in text.text.lines if regex.search(line.text) and line not in kept]
        assert not lost, regex


@pytest.mark.parametrize("source", [r"(?<!x)y(?!z)", r"a(?=\)b)", r"(?<=(?:b|c) )d"])
def test_a_lookaround_only_narrows(source: str) -> None:
    text = Joined(parse("t", b"xy yz y\nc d\na)b\nnone\n"))
    kept = [line.text for line in sieve.lines(text, re.compile(source))]
    assert "none" not in kept
    assert all(line.text in kept for line in text.text.lines if re.search(source, line.text))
