"""The pinned requirements hold all that pyproject.toml asks for (pins/update.sh makes them)."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

# torch comes from an index of its own, in torch-cpu.txt or with v100.txt.
OWN = {"torch"}


@pytest.mark.parametrize(
    ("pins", "extras"),
    [
        ("control.txt", ["provision"]),
        ("cpu.txt", ["runtime"]),
        ("v100.txt", ["runtime"]),
        ("dev.txt", ["runtime", "provision", "dev"]),
    ],
)
def test_pins_are_up_to_date(repo: Path, pins: str, extras: list[str]):
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + [
        line for extra in extras for line in project["optional-dependencies"][extra]
    ]
    text = (repo / "provision/volta_provision/pins" / pins).read_text()
    pinned: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE):
        pinned.setdefault(canonicalize_name(name), []).append(version)
    for requirement in map(Requirement, asked):
        if requirement.name not in OWN:
            versions = pinned.get(canonicalize_name(requirement.name), [])
            assert versions, f"{requirement.name} is not in {pins}: run pins/update.sh"
            assert all(map(requirement.specifier.contains, versions)), (requirement, versions)
