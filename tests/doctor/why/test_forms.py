"""What terminals, loggers, mails and chat clients do to a text does not change the answer."""

import random
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from volta_doctor.findings import PROBLEMS
from volta_doctor.report import Report

DATA = Path(__file__).parents[2] / "data/doctor/why"
Why = Callable[[Mapping[str, str | bytes]], Report]


def coloured(text: str) -> str:
    return "".join(f"\x1b[1;31m{line[:7]}\x1b[0m{line[7:]}\n" for line in text.splitlines())


def quoted(text: str) -> str:
    return "".join(f"> {line}\n" for line in text.splitlines())


def composed(text: str) -> str:
    return "".join(f"vllm-server-1  | {line}\n" for line in text.splitlines())


def journal(text: str) -> str:
    lines = text.splitlines()
    return "".join(f"Nov 30 12:00:00 rack1 run.sh[4711]: {line}\n" for line in lines)


def wrapped(text: str) -> str:
    lines = (textwrap.fill(line, 72, break_on_hyphens=False) for line in text.splitlines())
    return "\n".join(lines)


def recognised(text: str) -> str:
    """Put blanks into some words, as the recognition of a screenshot does."""
    dice = random.Random(3)
    lines = []
    for line in text.splitlines():
        chars = list(line)
        at = dice.randrange(10, 30)
        while at < len(chars):
            if chars[at - 1].isalpha() and chars[at].isalpha():
                chars[at] = f" {chars[at]}"
            at += dice.randrange(15, 60)
        lines.append("".join(chars))
    return "\n".join(lines)


FORMS: dict[str, Callable[[str], str | bytes]] = {
    "colours": coloured,
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "a mail's quotation": quoted,
    "Docker Compose": composed,
    "a journal": journal,
    "hard blanks": lambda text: text.replace(" ", "\u00a0"),
    "broken lines": wrapped,
    "a screenshot": recognised,
}
# A directory's listing and the history of apt are no lines of a journal; and what is told by the
# columns of a table, by commands or by what people say is lost with its words.
LOST = {
    "a journal": ("ext-lock", "unattended-upgrades-nvidia"),
    "a screenshot": (
        *("app-clocks", "experiments", "hugepages", "pcie-width", "power-limit", "smi-hang"),
        *("topo-tp", "transitional-driver-package", "unit-limits", "xid-63", "xid-fold"),
    ),
}


def firsts() -> list[Any]:
    """The first variant of each fault that is one text, in all forms."""
    found = []
    for path in sorted(DATA.glob("*.yaml")):
        cases = [case for case in yaml.safe_load(path.read_text()) if "text" in case]
        forms = [form for form in FORMS if path.stem not in LOST.get(form, ())]
        found += [
            pytest.param(cases[0], form, id=f"{path.stem}, {form}") for form in forms if cases
        ]
    return found


@pytest.mark.parametrize(("case", "form"), firsts())
def test_the_same_cause_in_another_form(case: dict[str, Any], form: str, why: Why) -> None:
    report = why({"paste.txt": FORMS[form](case["text"])})
    ids = [f.id for f in report.findings if f.status in PROBLEMS]
    assert (ids[0] if ids else "none") in case["primary"]
