"""Prometheus text format, for node_exporter's textfile collector.

A check's series carries its present status as a label and goes when that changes; the other
series are always there, so that an alert can tell a healthy host from one that is not looked at.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TextIO

from volta_doctor.report import Report


class Metric(NamedTuple):
    """A gauge, what it means, and its samples by labels."""

    name: str
    text: str
    samples: Iterable[tuple[dict[str, str], float]]


def render(report: Report, _file: TextIO, _verbose: bool) -> str:
    """Return the whole report, whatever is asked."""
    return "\n".join(line for metric in _metrics(report) for line in _lines(metric, report.labels))


def _metrics(report: Report) -> Iterator[Metric]:
    summary, profile = report.summary, report.profile
    yield Metric(
        "volta_doctor_check",
        "1 with the present status of each check on each subject; waived is a status of its own.",
        [
            (
                {
                    "id": finding.id,
                    "area": finding.area,
                    "subject": finding.subject,
                    "status": "waived" if finding.waived else finding.status.value,
                },
                1,
            )
            for finding in report.findings
        ],
    )
    yield Metric(
        "volta_doctor_findings",
        "Findings by status.",
        [({"status": name}, count) for name, count in summary.counts.items()],
    )
    yield Metric(
        "volta_doctor_exit_code",
        "0 healthy, 1 warnings, 2 failures, 3 could not tell.",
        [({}, summary.exit_code)],
    )
    yield Metric(
        "volta_doctor_last_run_timestamp_seconds",
        "When the facts were taken.",
        [({}, report.time.timestamp())],
    )
    yield Metric(
        "volta_doctor_info",
        "1 with the tool and the profile that judged.",
        [({"tool": report.tool, "profile": profile.name, "gpu": profile.gpu}, 1)],
    )


def _lines(metric: Metric, of_report: dict[str, str]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.text}"
    yield f"# TYPE {metric.name} gauge"
    for labels, value in metric.samples:
        shown = of_report | labels
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in shown.items())
        yield f"{metric.name}{{{pairs}}} {value:.15g}" if pairs else f"{metric.name} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
