"""No text crashes `why`, and none makes it slow."""

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volta_doctor.logs import readers
from volta_doctor.logs.sources import SourceError
from volta_doctor.logs.text import clean, parse
from volta_doctor.report import Report
from volta_doctor.why.case import Case, find
from volta_doctor.why.messages import Entry, entries

DATA = Path(__file__).parents[2] / "data/doctor/why"
Why = Callable[[Mapping[str, str | bytes]], Report]
PASTES = [
    case["text"]
    for path in sorted(DATA.glob("*.yaml"))
    for case in yaml.safe_load(path.read_text())
    if "text" in case
]
SECONDS = 2.0
LONGEST_LINE = 4_000


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_pastes(data: st.DataObject, why: Why) -> None:
    """Two pastes, cut, mixed line by line, with noise in them."""
    lines = [line for _ in range(2) for line in data.draw(st.sampled_from(PASTES)).splitlines()]
    lines = data.draw(st.permutations(lines))[: data.draw(st.integers(1, 40))]
    at = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[at])))
    lines[at] = lines[at][:cut] + data.draw(st.text(max_size=20)) + lines[at][cut:][::-1]
    why({"paste": "\n".join(lines).encode(errors="surrogatepass")})


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=2_000))
def test_any_bytes(data: bytes, why: Why) -> None:
    with contextlib.suppress(SourceError):  # bytes that begin as an archive and are none
        why({"paste": data})


def nasty(words: list[str]) -> list[str]:
    """Make lines on which a pattern that goes back and forth would not come to an end."""
    dice = random.Random(7)
    fillers = ["a", " ", "\t", "0", "1.", ".", ",", ":", "-", "[", "(", "'", '"', "=", "/", "GPU"]
    lines = []
    for word in words:
        lines += [(word + filler * 40 + word + filler)[:LONGEST_LINE] for filler in fillers]
        lines.append((word * LONGEST_LINE)[:LONGEST_LINE])
        lines.append(word + "".join(dice.choice(fillers) for _ in range(900)))
    return lines


@pytest.mark.parametrize("known", readers.load(), ids=lambda r: r.read.__name__)
def test_no_reader_is_led_astray(known: readers.Reader) -> None:
    text = parse("paste", "\n".join(nasty(list(known.hints))).encode())
    started = time.process_time()
    list(known.read(text))
    assert time.process_time() - started < SECONDS


def name(entry: Entry) -> str:
    return entry.pattern.source[:40]


@pytest.mark.parametrize("entry", entries(), ids=name)
def test_no_pattern_is_led_astray(entry: Entry) -> None:
    text = parse("paste", "\n".join(nasty(list(entry.pattern.literals)) * 10).encode())
    started = time.process_time()
    find(Case([text], []), entry.pattern)
    assert time.process_time() - started < SECONDS


@pytest.mark.parametrize("char", ["a", " ", "\x1b[", "&amp;", "\\", "[ERROR] ", "> ", "\r"])
def test_long_lines_are_cleaned_quickly(char: str) -> None:
    started = time.process_time()
    line = parse("paste", (char * 200_000).encode()).lines[0]
    assert line.body is not None
    assert clean(char * 200_000) is not None
    assert time.process_time() - started < SECONDS
