"""Each check of the GPU side finds the fault of its twin, through real pynvml, and nothing else.

The twins are rows of tests/data/fakegpu/twins.yaml; to add one, add a row.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.facts.model import Facts, Section
from volta_doctor.facts.nvml import NvmlFacts
from volta_doctor.facts.topo import TopoFacts
from volta_doctor.findings import SEVERITY, Finding, Status
from volta_doctor.judge import judge
from volta_doctor.profile import detect

SECTIONS = {"nvml", "topo", "smi"}
PROBLEMS = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.INFO)
# What the two collectors say of each state, in one process: nvmlInit reads the state anew.
COLLECT = """
import json, os, sys
import msgspec
from volta_doctor.facts.nvml import table
from volta_doctor.facts.topo import nvml
from volta_doctor.probe import CannotLook

def told(read):
    try:
        return msgspec.to_builtins(read())
    except CannotLook as reason:
        return str(reason)

for state in sys.argv[1:]:
    os.environ["VOLTA_FAKE_NVML"] = state
    print(json.dumps([told(table.read_host), told(nvml.read_host)]))
"""


def section(told: Any, kind: type) -> Section[Any]:
    if isinstance(told, str):
        return Section(ok=False, error=told)
    return Section(ok=True, data=msgspec.convert(told, kind))


@pytest.fixture(scope="session")
def twins(fakegpu: ModuleType) -> dict[str, dict[str, Any]]:
    import snapshots

    return {"healthy": {}} | snapshots.twins()


@pytest.fixture(scope="session")
def collected(
    fakegpu: ModuleType,
    twins: Mapping[str, Any],
    library: Callable[[list[str]], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Section[Any]]]:
    """The nvml and topo sections of each twin."""
    directory = tmp_path_factory.mktemp("states")
    by_library: dict[Path, list[str]] = {}
    for name in twins:
        fake = fakegpu.load("v100-sxm2-32gb-x2" if name == "healthy" else name)
        fakegpu.write_state(directory / name, fake)
        by_library.setdefault(library(fake.omit), []).append(name)
    found = {}
    for built, names in by_library.items():
        env = fakegpu.environment(built, directory)
        command = [sys.executable, "-c", COLLECT, *(str(directory / name) for name in names)]
        done = subprocess.run(command, env=env, check=True, capture_output=True)
        for name, line in zip(names, done.stdout.splitlines(), strict=True):
            nvml, topo = json.loads(line)
            found[name] = {"nvml": section(nvml, NvmlFacts), "topo": section(topo, TopoFacts)}
    return found


@pytest.fixture(scope="session")
def judged(
    twins: Mapping[str, Any], collected: Mapping[str, Any], snapshot_with: Callable[..., Any]
) -> Callable[[str], list[Finding]]:
    """What the judge finds on the host of a twin."""

    def find(name: str) -> list[Finding]:
        facts: Facts = snapshot_with(twins[name].get("facts", {})).facts
        facts = structs.replace(facts, **collected[name])
        return judge(facts, list(checks().values()), detect(facts))

    return find


def worst(findings: list[Finding]) -> dict[str, str]:
    """The status of each check among the findings."""
    ordered = sorted(findings, key=lambda finding: -SEVERITY.index(finding.status))
    return {finding.id: finding.status.value for finding in ordered}


def problems(findings: list[Finding], healthy: Mapping[str, str] = {}) -> dict[str, dict[str, str]]:
    """The problems that the healthy host has not: root causes, and those folded under one."""
    new = [f for f in findings if f.status in PROBLEMS and healthy.get(f.id) != f.status.value]
    return {
        "finds": worst([finding for finding in new if not finding.folded_under]),
        "folds": worst([finding for finding in new if finding.folded_under]),
    }


def names() -> list[str]:
    import yaml

    path = Path(__file__).parents[2] / "data/fakegpu/twins.yaml"
    return list(yaml.safe_load(path.read_text()))


def test_the_host_they_are_twins_of_is_healthy(judged):
    assert {*problems(judged("healthy"))["finds"].values()} <= {"info"}


@pytest.mark.parametrize("name", names())
def test_its_fault_is_found_and_nothing_else(judged, twins, name: str):
    twin = twins[name]
    found = problems(judged(name), worst(judged("healthy")))
    assert found["finds"] == twin["finds"]
    if twin.get("blinds"):
        assert {*found["folds"].values()} == {"unknown"}
    else:
        assert found["folds"] == twin.get("folds", {})


def test_every_check_of_the_gpu_side_has_a_twin(twins):
    found = {check_id for twin in twins.values() for check_id in twin.get("finds", ())}
    of_gpus = {
        row.id for row in checks().values() if not SECTIONS.isdisjoint(row.needs) and not row.active
    }
    assert not of_gpus - found
