"""Snapshots that lost something on their way: never a crash, and no failing host turns green.

The failing hosts are all cases of all checks in which one fails. Damage takes away: it deletes,
empties and cuts, and puts null or another type in a value's place; it never makes up a value.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volta_doctor.catalog import checks
from volta_doctor.facts.model import SnapshotError, decode, encode
from volta_doctor.judge import examine, judge
from volta_doctor.profile import detect
from volta_doctor.report import FORMATS, build

CASES = Path(__file__).parents[1] / "data/doctor/checks"
WRONG_USAGE, FAILURES, COULD_NOT_TELL = 64, 2, 3
# Sections that say what was found: a thing that is missing there cannot be told from one that
# never was. The lists themselves may be empty, but not missing.
FINDS = {
    "containers",
    "ext_cache",
    "history",
    "kernel_log",
    "packages",
    "processes",
    "python_envs",
    "release",
    "serve",
    "so_archs",
    "toolchain",
    "units",
}
# In the others, what may be absent, and is taken at its word.
MAY_LACK = (
    r"active",  # measured only on request
    r"active\.copies\.\d+",
    r"host\.container",  # absent on a host
    r"host\.nvidia_nodes(\.\d+)?",  # made when a GPU is first used
    r"nvml\.init_error",  # absent where it succeeded
    r"nvml\.gpus\.\d+\.handle_error",
    r"nvml\.gpus\.\d+\.retired_pages\.\w+(\.\d+(\.\w+)?)?",  # pages are things found
    r"nvml\.gpus\.\d+\.temperature\.slowdown",  # Volta's own is known
    r"pci\.devices\.\d+(\.driver)?",
    r"smi\.output",
)

Path_ = tuple[Any, ...]


@dataclass(repr=False)
class Host:
    """A failing host: which check and case, its snapshot, and where that is not healthy."""

    name: str
    saved: bytes
    fault: list[Path_]

    def __repr__(self) -> str:
        return self.name

    @property
    def raw(self) -> Any:
        """Its snapshot anew, to be damaged."""
        return msgspec.json.decode(self.saved)


def failing_cases() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(CASES.glob("*.yaml")):
        for case in yaml.safe_load(file.read_text()):
            if "fail" in case["is"] and "expect" not in case:
                found.setdefault(file.stem, []).append(case)
    return found


def leaves(patch: Any, path: Path_ = ()) -> Iterator[Path_]:
    if isinstance(patch, dict) and patch:
        for key, value in patch.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def nodes(raw: Any, path: Path_ = (), width: int = 3) -> Iterator[Path_]:
    """Every place below a node, of long lists the first few."""
    items: Any = ()
    if isinstance(raw, dict):
        items = raw.items()
    elif isinstance(raw, list):
        items = enumerate(raw[:width])
    for key, value in items:
        yield (*path, key)
        yield from nodes(value, (*path, key), width)


def at(raw: Any, path: Path_) -> Any:
    for step in path:
        raw = raw[step]
    return raw


def exists(raw: Any, path: Path_) -> bool:
    try:
        at(raw, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def damage(raw: Any, path: Path_, how: Any) -> bool:
    """Damage a place; False where this kind of damage says nothing there."""
    parent, last = at(raw, path[:-1]), path[-1]
    if how == "delete":
        del parent[last]
    elif how == "empty":
        if not isinstance(parent[last], list | dict) or not parent[last]:
            return False
        parent[last] = type(parent[last])()
    elif type(parent[last]) is type(how):
        return False
    else:
        parent[last] = how
    return True


@pytest.fixture(scope="module")
def hosts(snapshot_with) -> dict[str, list[Host]]:
    """The failing hosts of each check."""
    found: dict[str, list[Host]] = {}
    for check_id, cases in failing_cases().items():
        for case in cases:
            saved = encode(snapshot_with(case["facts"]))
            fault = [
                ("facts", section, "data", *path)
                for section, patch in case["facts"].items()
                for path in leaves(patch)
            ]
            if verdict(saved) == FAILURES:
                host = Host(f"{check_id}: {case['case']}", saved, fault)
                found.setdefault(check_id, []).append(host)
    return found


def verdict(raw: Any, form: str | None = None) -> int:
    """The exit code; raises nothing but what is a crash."""
    try:
        snapshot = decode(raw if isinstance(raw, bytes) else msgspec.json.encode(raw))
    except SnapshotError:
        return WRONG_USAGE
    profile = detect(snapshot.facts)
    findings = judge(snapshot.facts, list(checks().values()), profile)
    report = build(snapshot, profile, findings)
    if form:
        assert FORMATS[form](report, io.StringIO(), False)
    for finding in findings:
        assert "the check itself failed" not in finding.message, (finding.id, finding.message)
    return report.summary.exit_code


def may_lack(path: Path_, how: Any) -> bool:
    section, *inside = [str(step) for step in path[1:] if step != "data"]
    if section in FINDS and (len(inside) > 1 or how == "empty" or section == "history"):
        return True
    return any(re.fullmatch(pattern, ".".join([section, *inside])) for pattern in MAY_LACK)


def related(one: Path_, other: Path_) -> bool:
    short = min(len(one), len(other))
    return one[:short] == other[:short]


def is_told(raw: Any, check_id: str) -> bool:
    """Whether the check itself still fails or says that it cannot tell; so the host is not green.

    It saves asking all others, for nearly all damage.
    """
    try:
        facts = decode(msgspec.json.encode(raw)).facts
    except SnapshotError:
        return True
    findings = examine(facts, checks()[check_id], detect(facts))
    return any(finding.status in ("fail", "unknown") for finding in findings)


@pytest.mark.parametrize("check_id", failing_cases())
def test_what_is_gone_from_the_fault_itself_is_missed(hosts, check_id):
    green = []
    for host in hosts.get(check_id, []):
        places = {path[:depth] for path in host.fault for depth in range(2, len(path) + 1)}
        for path in host.fault:
            if exists(host.raw, path):
                places |= set(nodes(at(host.raw, path), path))
        for path in sorted(filter(lambda path: exists(host.raw, path), places), key=str):
            for how in ("delete", "empty", None):
                raw = host.raw
                if not damage(raw, path, how) or may_lack(path, how) or is_told(raw, check_id):
                    continue
                if verdict(raw) < FAILURES:
                    green.append((host.name, ".".join(map(str, path[1:])), how))
    assert green == []


@given(data=st.data())
@settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_damage_anywhere(hosts, data):
    """Wherever it hits: what turned a host green must have hit the fault itself."""
    everyone = [host for group in hosts.values() for host in group]
    host = everyone[data.draw(st.integers(0, len(everyone) - 1))]
    raw, hit = host.raw, []
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(nodes(raw, width=20))))
        how = data.draw(st.sampled_from(["delete", "empty", None, 0, "", [], {}, True, "x", -1.5]))
        if damage(raw, path, how):
            hit.append(path)
    code = verdict(raw, data.draw(st.sampled_from(sorted(FORMATS))))
    assert code in (0, 1, FAILURES, COULD_NOT_TELL, WRONG_USAGE)
    touched = any(related(path, fault) for path in hit for fault in host.fault)
    assert code >= FAILURES or touched, (host.name, hit)


@given(data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_snapshot_cut_short_is_none(healthy, data):
    length = data.draw(st.integers(0, len(healthy.rstrip()) - 1))
    assert verdict(healthy[:length]) == WRONG_USAGE


def test_the_command_ends_with_64_and_one_line(doctor, tmp_path, healthy):
    path = tmp_path / "snapshot.json"
    path.write_bytes(healthy[: len(healthy) // 2])
    done = doctor("check", "--snapshot", str(path))
    assert done.returncode == WRONG_USAGE
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
