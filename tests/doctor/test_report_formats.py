"""The reports for programs: each is read back by what reads it in the field, or by its schema."""

import io
import json
from xml.etree import ElementTree as Xml

import jsonschema
import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from volta_doctor.catalog import checks
from volta_doctor.findings import Evidence, Step, Waived
from volta_doctor.report import FORMATS

ROWS = checks()
NASTY = 'a|b `c` <d> & "e" \\ \x1b[0m \x00 ü [f](g) *h*'


def found(check_id, status, message="It is so.", *evidence, subject="host", **more):
    return getattr(ROWS[check_id], status)(message, *evidence, subject=subject, **more)


@pytest.fixture
def findings():
    waived = Waived(reason="spare part is ordered", expires="2026-12-31")
    log = Evidence("/var/log/kern.log", f"NVRM: Xid 79 {NASTY}", 42)
    step = Step(run=["nvidia-smi", "-pm", "1"])
    return [
        found("driver-loaded", "fail", NASTY, log, Evidence("NVML", "x"), Evidence("/etc/x", "y")),
        found("smi-rc", "unknown", "no answer"),
        found("persistence", "warn", "Off.", Evidence("NVML", "0"), subject="GPU-1", steps=[step]),
        found("persistence", "warn", "Off.", Evidence("NVML", "0"), subject="GPU-2"),
        found("app-clocks", "info", "1312 MHz.", Evidence("NVML", "1312"), subject="GPU-1"),
        found("iommu", "ok"),
        found("acs", "skip", "One GPU."),
        structs.replace(found("vbios-mix", "warn", "Mixed."), waived=waived),
    ]


@pytest.fixture
def written(report, findings):
    return {name: write(report(*findings), io.StringIO(), False) for name, write in FORMATS.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_names_every_problem_and_bears_an_empty_report(report, written, name):
    for check_id in ("driver-loaded", "persistence", "vbios-mix"):
        assert check_id in written[name]
    assert "pare part" in written[name] or name == "prometheus"
    assert FORMATS[name](report(), io.StringIO(), True) is not None


# The shape that Jenkins's junit-10.xsd allows: attributes, then elements within.
JUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
        {"properties", "testcase"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"failure", "error", "skipped", "system-out"}),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}


def test_junit_has_the_shape_that_jenkins_reads(written):
    root = Xml.fromstring(written["junit"].encode())
    for element in root.iter():
        attributes, within = JUNIT[element.tag]
        assert set(element.attrib) <= attributes
        assert {child.tag for child in element} <= within
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("8", "1", "1")
    assert root[0].get("timestamp") == "2026-11-30T21:20:00"
    for suite in root:
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
        assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names) == 8
    assert ("volta-doctor.mode", "persistence [GPU-1]") in names


def test_junit_outcomes(written):
    root = Xml.fromstring(written["junit"].encode())
    outcomes = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert outcomes == {
        "driver-loaded": ["failure"],
        "smi-rc": ["error"],
        "persistence [GPU-1]": ["system-out"],
        "persistence [GPU-2]": ["system-out"],
        "app-clocks [GPU-1]": ["system-out"],
        "iommu": ["system-out"],
        "acs": ["skipped", "system-out"],
        "vbios-mix": ["skipped", "system-out"],
    }
    (failure,) = root.iter("failure")
    assert "seen: /var/log/kern.log:42: NVRM: Xid 79 a|b" in failure.text
    assert "fix: Install the proprietary R580 driver" in failure.text
    (out,) = (c for c in root.iter("testcase") if c.get("name") == "persistence [GPU-1]")
    assert "run: nvidia-smi -pm 1" in out.findtext("system-out")


# What SARIF 2.1.0 demands of the objects that are written here, and no other key.
TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}
PHYSICAL = {
    "type": "object",
    "properties": {
        "artifactLocation": {
            "type": "object",
            "properties": {"uri": {"type": "string", "pattern": "^file:///[!-~]+$"}},
        },
        "region": {
            "type": "object",
            "properties": {"startLine": {"type": "integer", "minimum": 1}, "snippet": TEXT},
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId"],
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["error", "warning", "note"]},
        "message": TEXT,
        "rank": {"type": "number", "minimum": 0, "maximum": 100},
        "locations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"logicalLocations": {"type": "array"}, "physicalLocation": PHYSICAL},
                "additionalProperties": False,
            },
        },
        "relatedLocations": {
            "type": "array",
            "uniqueItems": True,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "message": TEXT,
                    "physicalLocation": PHYSICAL,
                },
                "additionalProperties": False,
            },
        },
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "suppressions": {
            "type": "array",
            "items": {
                "properties": {
                    "kind": {"enum": ["inSource", "external"]},
                    "status": {"enum": ["accepted", "underReview", "rejected"]},
                }
            },
        },
        "properties": {"type": "object"},
    },
    "additionalProperties": False,
}


def test_sarif_results(written):
    log = json.loads(written["sarif"])
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("volta-doctor", "0.1.0")
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for result in run["results"]:
        jsonschema.validate(result, RESULT)
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    levels = [(result["ruleId"], result["level"]) for result in run["results"]]
    assert levels == [
        ("driver-loaded", "error"),
        ("smi-rc", "warning"),
        ("persistence", "warning"),
        ("persistence", "warning"),
        ("app-clocks", "note"),
        ("vbios-mix", "warning"),
    ]
    first = run["results"][0]["locations"][0]["physicalLocation"]
    assert first["artifactLocation"]["uri"] == "file:///var/log/kern.log"
    assert first["region"]["startLine"] == 42
    assert "physicalLocation" not in run["results"][2]["locations"][0]
    assert [r["ruleId"] for r in run["results"] if "suppressions" in r] == ["vbios-mix"]
    assert run["invocations"][0]["endTimeUtc"] == "2026-11-30T21:20:00Z"


def test_sarif_fingerprints_hold_while_figures_change(report):
    def prints(*findings):
        log = json.loads(FORMATS["sarif"](report(*findings), io.StringIO(), False))
        return [result["partialFingerprints"] for result in log["runs"][0]["results"]]

    one = found("temp-gpu", "warn", "It is at 84 C.", subject="GPU-1")
    hotter = found("temp-gpu", "fail", "It is at 88 C.", subject="GPU-1")
    other = found("temp-gpu", "warn", "It is at 84 C.", subject="GPU-2")
    assert prints(one) == prints(hotter) != prints(other)


def test_prometheus_reads_it_back(written):
    families = {f.name: f for f in text_string_to_metric_families(written["prometheus"])}
    assert all(family.type == "gauge" and family.documentation for family in families.values())
    seen = {
        (s.labels["id"], s.labels["subject"], s.labels["status"])
        for s in families["volta_doctor_check"].samples
    }
    assert ("driver-loaded", "host", "fail") in seen
    assert ("persistence", "GPU-2", "warn") in seen
    assert ("vbios-mix", "host", "waived") in seen
    counts = {s.labels["status"]: s.value for s in families["volta_doctor_findings"].samples}
    assert counts == {
        "fail": 1, "unknown": 1, "warn": 2, "info": 1, "ok": 1, "skip": 1, "waived": 1,
    }  # fmt: skip
    assert families["volta_doctor_exit_code"].samples[0].value == 2
    when = families["volta_doctor_last_run_timestamp_seconds"].samples[0].value
    assert when == 1796073600


def test_prometheus_series_are_the_same_on_any_host_but_for_the_checks(report, written):
    def names(text):
        return {
            (s.name, s.labels.get("status"))
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name != "volta_doctor_check"
        }

    healthy = FORMATS["prometheus"](report(found("iommu", "ok")), io.StringIO(), False)
    assert names(healthy) == names(written["prometheus"])


def test_prometheus_escapes_labels(report):
    subject = 'C:\\new "unit"\nx'
    finding = found("iommu", "warn", subject=subject)
    text = FORMATS["prometheus"](report(finding), io.StringIO(), False)
    (family, *_) = text_string_to_metric_families(text)
    assert family.samples[0].labels["subject"] == subject


def test_markdown_escapes_what_a_log_may_hold(written):
    text = written["markdown"]
    assert text.startswith("## gpu1: failures\n")
    (row,) = (line for line in text.splitlines() if line.startswith("| FAIL |"))
    assert row.replace("\\|", "").count("|") == 5
    assert r"a\|b \`c\` \<d\> &amp;" in row
    assert "| WAIVED | vbios-mix | Mixed.<br>*Waived until 2026-12-31: spare part" in text
    assert "<details><summary>driver-loaded</summary>" in text
    assert text.count("<details>") == text.count("</details>")
    assert "nvidia-smi -pm 1" in text
    assert "iommu" not in text


def test_markdown_code_cannot_close_its_fence(report):
    nasty = found("iommu", "warn", "x", Evidence("/log", "```` </details>"))
    text = FORMATS["markdown"](report(nasty), io.StringIO(), False)
    assert text.count("`````") == 2


def test_markdown_verbose_has_all(report, findings):
    text = FORMATS["markdown"](report(*findings), io.StringIO(), True)
    assert "| OK | iommu |" in text
    assert "| SKIP | acs |" in text
