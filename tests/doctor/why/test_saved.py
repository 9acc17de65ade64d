"""`why` reads what the doctor itself wrote: snapshots and reports, alone and beside a log."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from volta_doctor.catalog import checks
from volta_doctor.facts.model import Snapshot, encode
from volta_doctor.findings import PROBLEMS
from volta_doctor.judge import judge
from volta_doctor.logs.sources import SourceError
from volta_doctor.profile import detect
from volta_doctor.redact import redacted
from volta_doctor.report import Report, build, json

Why = Callable[[Mapping[str, str | bytes]], Report]
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture
def broken(snapshot_with: Callable[[Mapping[str, Any]], Snapshot]) -> Snapshot:
    lines = [{"time": 1.0, "text": "Linux version 6.1.0"}, {"time": 900.0, "text": XID}]
    return snapshot_with({"kernel_log": {"lines": lines}})


def problems(report: Report) -> dict[str, str]:
    return {f.id: f.status.value for f in report.findings if f.status in PROBLEMS}


def checked(snapshot: Snapshot) -> Report:
    profile = detect(snapshot.facts)
    return build(snapshot, profile, judge(snapshot.facts, checks().values(), profile))


def test_a_snapshot_is_judged_as_check_judges_it(broken: Snapshot, why: Why) -> None:
    report = why({"host.json": encode(broken)})
    assert report.findings[0].id == "xid-fatal"
    assert problems(report) == problems(checked(broken))
    assert report.summary.exit_code == 2


def test_a_healthy_snapshot_is_healthy(snapshot_with: Any, why: Why) -> None:
    report = why({"host.json": encode(snapshot_with({}))})
    assert problems(report) == problems(checked(snapshot_with({})))
    assert report.summary.exit_code == checked(snapshot_with({})).summary.exit_code


def test_a_saved_report_keeps_its_findings(broken: Snapshot, why: Why) -> None:
    saved = json.render(checked(broken), io.StringIO(), False)
    report = why({"report.json": saved})
    assert report.findings[0].id == "xid-fatal"
    assert problems(report) == problems(checked(broken))


def test_a_check_of_a_sites_own_in_a_report(broken: Snapshot, why: Why) -> None:
    saved = json.render(checked(broken), io.StringIO(), False).replace("xid-fatal", "acme-fans")
    assert problems(why({"report.json": saved}))["acme-fans"] == "fail"


def test_a_log_beside_a_snapshot_is_one_case(snapshot_with: Any, why: Why) -> None:
    log = "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."
    report = why({"host.json": encode(snapshot_with({})), "serve.log": log})
    assert report.findings[0].id == "bf16"


def test_an_answer_of_why_itself_reads_again(why: Why) -> None:
    first = why({"log": f"[1.0] {XID}"})
    again = why({"answer.json": json.render(first, io.StringIO(), False)})
    assert problems(again) == problems(first)
    assert again.findings[0].confidence == first.findings[0].confidence


def test_a_second_snapshot_is_named(broken: Snapshot, snapshot_with: Any, why: Why) -> None:
    report = why({"one.json": encode(broken), "two.json": encode(snapshot_with({}))})
    assert report.findings[0].id == "xid-fatal"
    assert any("two.json: a second snapshot" in note for note in report.notes)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda data: data.replace(b'"schema": 1', b'"schema": 9'), "has schema 9, this volta-"),
        (lambda data: data[:-40], "take it anew"),
        (lambda data: data.split(b',\n "facts"')[0] + b"}", "why reads snapshots, and reports"),
    ],
    ids=["another schema", "cut off", "of another verb"],
)
def test_a_file_of_ours_that_is_not_judged(
    edit: Callable[[bytes], bytes], said: str, broken: Snapshot, why: Why
) -> None:
    with pytest.raises(SourceError, match=f"host.json: .*{said}"):
        why({"host.json": edit(encode(broken))})


def test_a_report_that_is_cut_off(broken: Snapshot, why: Why) -> None:
    saved = json.render(checked(broken), io.StringIO(), False)
    with pytest.raises(SourceError, match=r"report.json: not a whole report"):
        why({"report.json": saved[:-40]})


def test_a_redacted_snapshot(broken: Snapshot, why: Why) -> None:
    assert why({"host.json": encode(redacted(broken))}).findings[0].id == "xid-fatal"
