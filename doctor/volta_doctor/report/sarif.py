"""SARIF 2.1.0 for code scanning and editors: one result for each problem.

A waived problem is a suppressed result. What is ok or skipped is none: some viewers make an alert
of every result, whatever its kind says.
"""

import hashlib
import json
from typing import Any, TextIO
from urllib.parse import quote

from volta_doctor.findings import PROBLEMS, Evidence, Finding, Status
from volta_doctor.report import Report
from volta_doctor.report.groups import place

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {
    Status.FAIL: "error",
    Status.UNKNOWN: "warning",
    Status.WARN: "warning",
    Status.INFO: "note",
}


def render(report: Report, _file: TextIO, _verbose: bool) -> str:
    """Return every problem, whatever is asked."""
    problems = [finding for finding in report.findings if finding.status in PROBLEMS]
    rules = {finding.id: _rule(finding) for finding in problems}
    name, _, version = report.tool.partition(" ")
    run = {
        "tool": {"driver": {"name": name, "version": version, "rules": list(rules.values())}},
        "automationDetails": {"id": f"{name}/{report.judged}/"},
        "invocations": [
            {
                "executionSuccessful": True,
                "exitCode": report.summary.exit_code,
                "exitCodeDescription": report.summary.verdict,
                "endTimeUtc": f"{report.time:%Y-%m-%dT%H:%M:%SZ}",
                "properties": {
                    "profile": report.profile.name,
                    "profileReason": report.profile.reason,
                    "notes": report.notes,
                },
            }
        ],
        "results": [_result(finding, report, list(rules)) for finding in problems],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "name": "".join(word.capitalize() for word in finding.id.split("-")),
        "shortDescription": {"text": f"{finding.title[0].upper()}{finding.title[1:]}."},
        "help": {"text": f"{finding.remedy.fix} See docs/checks.md, {finding.id}."},
        "properties": {"tags": [finding.area], "risk": finding.remedy.risk},
    }


def _result(finding: Finding, report: Report, rule_ids: list[str]) -> dict[str, Any]:
    text = "\n".join(
        [finding.message, *(f"seen: {place(seen)}: {seen.text}" for seen in finding.evidence)]
    )
    files = [seen for seen in finding.evidence if seen.source.startswith("/")]
    location: dict[str, Any] = {
        "logicalLocations": [
            {
                "name": finding.subject,
                "fullyQualifiedName": f"{report.judged}/{finding.subject}",
                "kind": "resource",
            }
        ]
    }
    if files:
        location["physicalLocation"] = _physical(files[0])
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": rule_ids.index(finding.id),
        "level": _LEVELS[finding.status],
        "message": {"text": text},
        "locations": [location],
        "relatedLocations": [
            {"id": number, "message": {"text": seen.text}, "physicalLocation": _physical(seen)}
            for number, seen in enumerate(files[1:], 1)
        ],
        "partialFingerprints": {"voltaDoctor/v1": _fingerprint(report.judged, finding)},
        "rank": 100.0 * (1 - (finding.rank - 1) / len(report.findings)),
        "properties": {
            "status": finding.status.value,
            "hides": finding.hides,
            "foldedUnder": finding.folded_under,
            "count": finding.count,
        },
    }
    if finding.waived:
        said = f"{finding.waived.reason} (until {finding.waived.expires})"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": said}]
    return result


def _physical(seen: Evidence) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": f"file://{quote(seen.source)}"}}
    if seen.line:
        place["region"] = {"startLine": seen.line, "snippet": {"text": seen.text}}
    return place


def _fingerprint(host: str, finding: Finding) -> str:
    """Stay the same while the same check finds something on the same subject, whatever figures."""
    return hashlib.sha256(f"{host}\0{finding.id}\0{finding.subject}".encode()).hexdigest()[:32]
