"""docs/why.md shows what `why` says today, and names what it knows."""

from pathlib import Path

import pytest

from volta_doctor.catalog.why import diagnoses
from volta_doctor.why import document


@pytest.fixture(scope="module")
def page(repo: Path) -> str:
    return (repo / "docs/why.md").read_text()


def test_its_answers_are_those_of_today(page: str) -> None:
    assert document.refreshed(page) == page
    assert page.count("$ volta-doctor why ") >= 5


def test_each_example_leads_to_its_cause(page: str) -> None:
    first = [part.split("\n", 1) for part in page.split("$ volta-doctor why ")[1:]]
    said = [answer.split("]", 1)[0].rsplit("[", 1)[-1] for _, answer in first]
    assert said == [
        "torch-arch",
        "xid-fatal",
        "repo-signed-by-conflict",
        "tp-divides-groups",
        "undetermined",
        "custom-allreduce-topology",
    ]


def test_every_cause_is_told(page: str) -> None:
    for name in diagnoses():
        assert f"**{name}**" in page
