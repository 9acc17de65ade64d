"""How the checks of a checkpoint are run, gathered, folded and made fit to print."""

from pathlib import Path

import pytest

from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Evidence, Status
from volta_doctor.preflight import judge
from volta_doctor.preflight.checks import MODEL_CHECKS
from volta_doctor.preflight.look import look


@pytest.fixture
def subject(llama):
    return look(llama(shards=2), None, Flags(), None, Facts())


@pytest.fixture
def says(monkeypatch, subject):
    """Have a check say something, and judge by the checks that were given words."""
    rows = []

    def give(check_id, function):
        monkeypatch.setitem(MODEL_CHECKS, check_id, function)
        rows.append(model_checks()[check_id])

    def run():
        return judge.judge(subject, rows)

    give.judged = run
    return give


def raising(error):
    def function(subject, row):
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "says_"),
    [
        (raising(Missing("no vocab_size")), "no vocab_size"),
        (raising(ZeroDivisionError("x")), "the check itself failed: ZeroDivisionError: x"),
        (lambda subject, row: [], "Nothing is told"),
    ],
)
def test_what_cannot_be_told_is_unknown(says, function, says_):
    says("st-header", function)
    (finding,) = says.judged()
    assert finding.status is Status.UNKNOWN
    assert says_ in finding.message
    assert finding.subject == "model"


def test_every_row_has_its_function_and_every_function_its_row():
    assert MODEL_CHECKS.keys() == model_checks().keys()


def test_findings_that_differ_in_numbers_are_gathered(says):
    def each(subject, row):
        for n in range(5000):
            yield row.fail(f"{n} is not {n + 1}.", subject=f"layers.{n}.weight")
        yield row.fail("Another fault.", subject="x")

    says("st-header", each)
    first, other = says.judged()
    assert (first.count, first.subject) == (5000, "layers.0.weight")
    assert first.message == (
        "0 is not 1. The like is so of 4999 more: layers.1.weight, layers.2.weight,"
        " layers.3.weight and 4996 more."
    )
    assert other.message == "Another fault."


def test_a_cause_hides_what_follows_in_its_own_file_alone(says, subject):
    one, two = sorted({info.file.name for info in subject.checkpoint.contents.tensors.values()})
    inside = next(n for n, i in subject.checkpoint.contents.tensors.items() if i.file.name == one)
    says("lfs-pointer", lambda subject, row: row.fail("A pointer.", subject=one))
    says(
        "st-header",
        lambda subject, row: [
            row.fail("No header.", Evidence(f"/m/{one}", "x"), subject=one),
            row.fail("Cut short.", Evidence(f"/m/{two}", "x"), subject=two),
        ],
    )
    says("st-index", lambda subject, row: row.fail("Not there.", subject=inside))
    under = {(f.id, f.subject): f.folded_under for f in says.judged()}
    assert under == {
        ("lfs-pointer", one): None,
        ("st-header", one): "lfs-pointer",
        ("st-header", two): None,
        ("st-index", inside): "lfs-pointer",
    }


def test_what_a_file_says_is_one_plain_line(says):
    name = "a\x1b[2J\n\u202eb\ud800" + "x" * 5000

    def named(subject, row):
        return row.fail(f"{name} is bad.", Evidence(name, name), subject=name)

    says("st-header", named)
    (finding,) = says.judged()
    for text in (finding.subject, finding.evidence[0].source):
        assert text.startswith("a?[2J??b?xxx")
        assert len(text) < 300
    assert finding.message.endswith("xxx is bad.")
    assert finding.message.isprintable()


def test_a_need_that_was_not_named_is_a_skip(says):
    for check_id in ("mem-fit", "host-mem"):
        says(check_id, raising(AssertionError("it must not be asked")))
    assert {f.status for f in says.judged()} == {Status.SKIP}


def test_where_there_is_no_checkpoint_nothing_is_ok(tmp_path: Path):
    empty = look(tmp_path, None, Flags(), None, Facts())
    findings = judge.judge(empty, model_checks().values())
    assert {finding.status for finding in findings} == {Status.UNKNOWN}
    assert len({finding.message for finding in findings}) == 1
