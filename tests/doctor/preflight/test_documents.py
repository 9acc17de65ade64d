"""What the documents say of models is so, and what is generated is fresh."""

import re
from pathlib import Path

import pytest

from volta_doctor import docs, examples
from volta_doctor.catalog import checks
from volta_doctor.catalog.model import model_checks
from volta_doctor.catalog.why import diagnoses, rows
from volta_doctor.cli.model import model
from volta_doctor.preflight.report import ModelReport
from volta_runtime.checkpoint.formats import document as formats

AGAIN = "python -m volta_doctor.docs"


@pytest.fixture(scope="module")
def page(repo: Path) -> str:
    return (repo / "docs/model.md").read_text()


def test_what_is_generated_is_fresh(page):
    assert examples.refreshed(page) == page, AGAIN
    assert docs.MODEL_SCHEMA_JSON.read_text() == docs.schema_json(ModelReport), AGAIN
    assert docs.FORMATS_MD.read_text() == formats.markdown(), AGAIN


def test_every_flag_that_it_shows_is_one(page):
    known = {word for option in model.params for word in option.opts}
    shown = set()
    for line in re.findall(r"volta-doctor model [^`\n]+", page):
        shown |= set(re.findall(r"(?<= )--?[a-z][a-z-]*", re.split("[#|]", line)[0]))
    assert {"--gpu", "--engine", "--tp", "--snapshot"} <= shown <= known


def test_every_check_of_a_model_has_its_place_in_the_page_of_checks():
    page = docs.checks_md()
    headings = re.findall(r"^### (.*)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings)) == len(checks()) + len(model_checks())
    for heading in headings:
        assert f"[{heading}](#{heading.replace(' ', '-')})" in page


def test_a_name_that_judges_hosts_and_models_makes_one_claim():
    both = checks().keys() & model_checks().keys()
    assert both == {"mem-fit", "host-mem", "swap-space-thrash"}
    for name in both:
        assert checks()[name].title == model_checks()[name].title


def test_what_a_text_shows_of_a_model_has_the_words_of_its_check():
    for name in diagnoses().keys() & model_checks().keys() - checks().keys():
        entry, row, told = diagnoses()[name], model_checks()[name], rows()[name]
        assert (entry.title, entry.fix, entry.source, entry.volta_note) == ("", "", "", ""), name
        assert (told.title, told.fix, told.risk) == (row.title, row.fix, row.risk)
        assert set(told.hides) == {*row.hides, *entry.hides}


def test_rows_hide_and_name_what_there_is():
    known = rows()
    for row in model_checks().values():
        assert set(row.hides) <= known.keys(), row.id
        assert set(row.rule) - {"ok"}, row.id


@pytest.mark.parametrize("name", ["st-header", "mem-fit"])
def test_explain_and_list_tell_them(name, doctor):
    told = doctor("explain", name).stdout
    assert "a checkpoint, by volta-doctor model" in told
    assert " ".join(model_checks()[name].fix.split())[:30] in " ".join(told.split())
    listed = doctor("list").stdout
    assert f"{model_checks()[name].area} (volta-doctor model):" in listed
