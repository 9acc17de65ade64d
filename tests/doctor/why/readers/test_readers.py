"""Each table of tests/data/doctor/why_readers/ holds dumps, and what is read and judged of them.

Of `facts` each is a path (nvml.gpus.0.name) and its value; `problems` are what the checks find at
warn or fail; `places` are by check the lines that its first finding quotes.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from volta_doctor.findings import Status
from volta_doctor.logs import readers
from volta_doctor.logs.parts import merged
from volta_doctor.logs.text import parse
from volta_doctor.why.case import Case
from volta_doctor.why.diagnose import from_facts

DATA = Path(__file__).parents[3] / "data/doctor/why_readers"
_NO_PROBLEM = (Status.OK, Status.SKIP, Status.INFO)


def dumps() -> list[Any]:
    return [
        pytest.param(entry, id=f"{path.stem}: {entry['name']}")
        for path in sorted(DATA.glob("*.yaml"))
        for entry in yaml.safe_load(path.read_text())
    ]


def files_of(entry: dict[str, Any]) -> dict[str, str]:
    if "file" in entry:
        return {entry["file"]: (DATA / entry["file"]).read_text()}
    files: dict[str, str] = entry.get("files") or {"paste.txt": entry["text"]}
    return files


def at(value: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(value, list):
            value = value[int(name)]
        elif isinstance(value, dict):
            value = value[name]
        else:
            value = getattr(value, name)
        value = value.data if hasattr(value, "not_here") and value.ok else value
    return msgspec.to_builtins(value)


def _case(entry: dict[str, Any]) -> Case:
    texts = [parse(name, text.encode()) for name, text in files_of(entry).items()]
    return Case(texts, [part for text in texts for part in readers.read(text)])


@pytest.mark.parametrize("entry", dumps())
def test_facts(entry: dict[str, Any]) -> None:
    case = _case(entry)
    found = {path: at(merged(case.parts), path) for path in entry.get("facts", {})}
    assert found == entry.get("facts", {})
    found = {path: at(case, path) for path in entry.get("case", {})}
    assert found == entry.get("case", {})


@pytest.mark.parametrize("entry", [p for p in dumps() if "problems" in p.values[0]])
def test_findings(entry: dict[str, Any]) -> None:
    found = [weighed.finding for weighed in from_facts(_case(entry))]
    problems = sorted({f.id for f in found if f.status not in _NO_PROBLEM})
    assert problems == sorted(entry["problems"]), {f.id: f.message for f in found}
    for check_id, lines in entry.get("places", {}).items():
        of_check = [f for f in found if f.id == check_id and f.status is not Status.OK]
        assert [seen.line for seen in of_check[0].evidence] == lines
