"""Snapshots of fake hosts: what a file in tests/data/fakegpu or a row of twins.yaml stands for."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data" / "fakegpu"
STATE_VARIABLE = "VOLTA_FAKE_NVML"
_MATRICES = ("links", "p2p")
_HEALTHY = "v100-sxm2-32gb-x2.json"  # what a faulty twin is a twin of, unless it says otherwise


@dataclass(frozen=True)
class Fake:
    """A whole host.

    `nvml` and `topo` are sections of the doctor's facts; `omit` are the functions that its
    library lacks, and `fault` is what nvmlInit does instead of answering: hang or crash. `smi` is
    how nvidia-smi ends where it does not print its XML: its exit code and what it says.
    """

    nvml: dict[str, Any]
    topo: dict[str, Any] = field(default_factory=dict)
    omit: list[str] = field(default_factory=list)
    fault: str = ""
    smi: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Any]:
        """What the library is told; what the doctor does not ask begins as on every card."""
        gpus = [{"accounting": False, **gpu} for gpu in self.nvml.get("gpus", [])]
        return {**self.nvml, "gpus": gpus, "topo": self.topo, "fault": self.fault}


def twins() -> dict[str, dict[str, Any]]:
    """The faulty twins by name."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "twins.yaml").read_text())
    return rows


def load(snapshot: str | Path) -> Fake:
    """The host of a file, or of a name: a file or a faulty twin in the test data."""
    path = Path(snapshot)
    if path.suffix == ".json":
        return _read(path)
    if (DATA / f"{snapshot}.json").exists():
        return _read(DATA / f"{snapshot}.json")
    return _change(twins()[str(snapshot)], DATA)


def _read(path: Path) -> Fake:
    content = json.loads(path.read_text())
    if "base" in content:
        return _change(content, path.parent)
    topo = content.pop("topo", {})
    return Fake(content, _topo(topo, content.get("device_count")))


def _change(change: dict[str, Any], directory: Path) -> Fake:
    fake = _read(directory / change.get("base", _HEALTHY))
    nvml = copy.deepcopy(fake.nvml)
    if "bus_ids" in change:
        nvml["gpus"] = [_like(nvml["gpus"][0], n, bus) for n, bus in enumerate(change["bus_ids"])]
        nvml["device_count"] = len(nvml["gpus"])
    topo = change.get("topo", copy.deepcopy(fake.topo))
    if isinstance(topo, str):
        topo = json.loads((directory / topo).read_text())
    whole = {**nvml, "topo": _topo(topo, nvml["device_count"])}
    for dotted, value in change.get("set", {}).items():
        for place, last in _places(whole, dotted.split(".")):
            place[last] = _repeated(value)
    return Fake(
        nvml={name: value for name, value in whole.items() if name != "topo"},
        topo=whole["topo"],
        omit=fake.omit + change.get("omit", []),
        fault=change.get("fault", ""),
        smi=change.get("smi", {}),
    )


def _repeated(value: Any) -> Any:
    """A list of like items, where the value is `{repeat: how many, of: item}`."""
    if isinstance(value, dict) and value.keys() == {"repeat", "of"}:
        return [value["of"]] * value["repeat"]
    return value


def _like(gpu: dict[str, Any], number: int, bus_id: str) -> dict[str, Any]:
    """Another GPU of the same make: with numbers and a place of its own."""
    return copy.deepcopy(gpu) | {
        "index": number,
        "minor_number": number,
        "uuid": f"{gpu['uuid'][:-12]}{number + 1:012d}",
        "serial": f"{gpu['serial'][:-4]}{number + 1:04d}",
        "pci": gpu["pci"] | {"bus_id": bus_id},
    }


def _topo(short: dict[str, Any], size: int) -> dict[str, Any]:
    return {name: _matrix(v, size) if name in _MATRICES else v for name, v in short.items()}


def _matrix(short: str | list[Any], size: int) -> list[list[str]]:
    """A matrix from its rows as text, or from what every pair has."""
    if isinstance(short, str):
        return [["X" if i == j else short for j in range(size)] for i in range(size)]
    return [row.split() if isinstance(row, str) else row for row in short]


def _places(whole: Any, steps: list[str]) -> Iterator[tuple[Any, Any]]:
    """Where a dotted path leads; `*` stands for every item of a list."""
    if steps[0] == "*":
        for index in range(len(whole)):
            yield from _places(whole, [str(index), *steps[1:]])
        return
    step: Any = int(steps[0]) if steps[0].isdigit() else steps[0]
    if len(steps) == 1:
        yield whole, step
    else:
        yield from _places(whole[step], steps[1:])


def flatten(value: Any, path: str = "") -> Iterator[str]:
    """The lines of the library's state: `path=value` or `path!error`; a list is its size first."""
    prefix = f"{path}." if path else ""
    match value:
        case {"error": code}:
            yield f"{path}!{code}"
        case dict():
            for name, item in value.items():
                yield from flatten(item, f"{prefix}{name}")
        case list():
            yield f"{path}={len(value)}"
            for index, item in enumerate(value):
                yield from flatten(item, f"{prefix}{index}")
        case bool():
            yield f"{path}={value:d}"
        case int() | str():
            yield f"{path}={value}"
