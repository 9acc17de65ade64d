"""JUnit XML for a CI system: a test suite for each area, a test case for each finding.

The shape is what Jenkins's junit plugin and GitLab's unit test reports read: fail is a failure,
unknown an error, skip and waived are skipped, and what else was found is a passed case's output.
"""

import re
from typing import TextIO
from xml.etree import ElementTree as Xml

from volta_doctor.findings import HOST, MODEL, Finding, Status
from volta_doctor.report import Report
from volta_doctor.report.groups import calls_for_action, command, place

# What XML 1.0 cannot hold, not even escaped (section 2.2), and a log may.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OUTCOMES = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped"}


def render(report: Report, _file: TextIO, _verbose: bool) -> str:
    """Return the whole report, whatever is asked."""
    totals = _counts(report.findings)
    del totals["skipped"]  # a suite tells it, the root has no such attribute
    root = Xml.Element("testsuites", {"name": "volta-doctor", **totals})
    for area in dict.fromkeys(finding.area for finding in report.findings):
        findings = [finding for finding in report.findings if finding.area == area]
        about = {
            "name": area,
            "hostname": _legal(report.judged),
            "timestamp": f"{report.time:%Y-%m-%dT%H:%M:%S}",  # the format knows no zone
        }
        suite = Xml.SubElement(root, "testsuite", about | _counts(findings))
        properties = Xml.SubElement(suite, "properties")
        for name, value in _properties(report).items():
            Xml.SubElement(properties, "property", name=name, value=_legal(value))
        for finding in findings:
            _case(suite, finding)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode")


def _case(suite: Xml.Element, finding: Finding) -> None:
    where = "" if finding.subject in (HOST, MODEL) else f" [{finding.subject}]"
    case = Xml.SubElement(
        suite,
        "testcase",
        classname=f"volta-doctor.{finding.area}",
        name=_legal(f"{finding.id}{where}"),
        time="0",
    )
    if outcome := _outcome(finding):
        reason = finding.message
        if finding.waived:
            reason = f"waived until {finding.waived.expires}: {finding.waived.reason}"
        told = Xml.SubElement(case, outcome, message=_legal(reason))
        if outcome != "skipped":
            told.set("type", finding.status.value)
            told.text = _legal(_details(finding))
            return
    Xml.SubElement(case, "system-out").text = _legal(_details(finding))


def _outcome(finding: Finding) -> str | None:
    return "skipped" if finding.waived else _OUTCOMES.get(finding.status)


def _details(finding: Finding) -> str:
    lines = [f"{finding.status.value}: {finding.message}"]
    if finding.folded_under:
        lines.append(f"follows from: {finding.folded_under}")
    lines += [f"seen: {place(seen)}: {seen.text}" for seen in finding.evidence]
    if calls_for_action(finding):
        lines.append(f"fix: {finding.remedy.fix} (risk: {finding.remedy.risk})")
        lines += [f"run: {command(step)}" for step in finding.remedy.steps if step.run]
    return "\n".join(lines)


def _counts(findings: list[Finding]) -> dict[str, str]:
    outcomes = [_outcome(finding) for finding in findings]
    return {
        "tests": str(len(findings)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
        "time": "0",
    }


def _properties(report: Report) -> dict[str, str]:
    told = {"tool": report.tool, "verdict": report.summary.verdict}
    return told | {"profile": report.profile.name, "profile.reason": report.profile.reason}


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
