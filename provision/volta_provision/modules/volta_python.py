#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Which Python a host has for a release, and what is missing to make one or to build."""

# Annotations are not evaluated: this must run on an old Python to say that it is old.
from __future__ import annotations

DOCUMENTATION = r"""
module: volta_python
short_description: The Python and the tools that a host has for a release
description:
  - Finds a Python that a release can use, the one that Ansible runs by if it can, and the tools.
  - Reads only.
options:
  os:
    description: The C(os) that M(volta.stack.volta_facts) returned.
    type: dict
    required: true
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Find the Python for a release
  volta_python:
    os: "{{ preflight_host.os }}"
  register: found
"""
RETURN = r"""
python:
  description: >-
    The interpreter for releases, its C(path), its C(version) as major.minor, whether it is
    C(supported), and the C(package) that has it, or would have one that is.
  type: dict
  returned: always
class:
  description: Hosts of one class share a built wheel, as debian-12-x86_64-cp311.
  type: str
  returned: always
missing_tools:
  description: The tools that every host needs, and this one lacks.
  type: list
  elements: str
  returned: always
missing_packages:
  description: Distribution packages that hold them.
  type: list
  elements: str
  returned: always
missing_build_tools:
  description: The tools that a host needs to build, and this one lacks.
  type: list
  elements: str
  returned: always
missing_build_packages:
  description: Distribution packages that hold them.
  type: list
  elements: str
  returned: always
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DEFAULT = Path("/usr/bin/python3")
# The Pythons for which the lock knows a torch wheel of every profile.
PYTHONS = ("3.11", "3.12", "3.13")
# Which one the distributions have beside an older default. Ubuntu 22.04's is in universe.
PYTHON_PACKAGES = {"ubuntu-22": "python3.11", "redhat-8": "python3.11", "redhat-9": "python3.11"}
ASK_PYTHON = """
import importlib.util, pathlib, sysconfig
header = pathlib.Path(sysconfig.get_paths()["include"], "Python.h")
print(header.exists(), bool(importlib.util.find_spec("ensurepip")))
"""
# A tool, and the package that holds it by apt and by dnf, for the Python of a release.
VENV = ("venv", "{python}-venv", "{python}")
# What the host that builds needs besides.
HEADERS = ("Python headers", "{python}-dev", "{python}-devel")
PROGRAMS = (("g++", "g++", "gcc-c++"), ("cmake", "cmake", "cmake"))


def find_python(system: dict[str, str]) -> dict[str, Any]:
    """Return the Python for releases: Ansible's own, another one here, or one to be installed.

    `package` is the name that its packages begin with, empty where the distribution has none.
    """
    here = "{}.{}".format(*sys.version_info[:2])
    known = {here: sys.executable}
    for version in reversed(PYTHONS):
        if path := shutil.which(f"python{version}"):
            known.setdefault(version, path)
    version = next((version for version in known if version in PYTHONS), here)
    supported = version in PYTHONS
    default = DEFAULT.resolve().name == f"python{version}"
    row = f"{system['family' if system['family'] == 'redhat' else 'id']}-{system['major']}"
    package = "python3" if default else f"python{version}"
    return {
        "path": known[version],
        "version": version,
        "supported": supported,
        "package": package if supported else PYTHON_PACKAGES.get(row, ""),
    }


def missing_tools(python: dict[str, Any], dnf: bool) -> dict[str, list[str]]:
    """Return the tools that are not here, and the packages that hold them."""
    command = [python["path"], "-c", ASK_PYTHON]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    header, ensurepip = answer
    usable = python["supported"]
    tools = [] if usable and ensurepip == "True" else [VENV]
    build = [] if usable and header == "True" else [HEADERS]
    build += [tool for tool in PROGRAMS if not shutil.which(tool[0])]
    column = 2 if dnf else 1

    def packages(rows: list[tuple[str, str, str]]) -> list[str]:
        names = {row[column].format(python=python["package"]) for row in rows}
        return sorted(names) if python["package"] else []

    own = [] if usable else [f"Python {' or '.join(PYTHONS)}"]
    return {
        "missing_tools": own + [tool[0] for tool in tools],
        "missing_packages": packages(tools),
        "missing_build_tools": [tool[0] for tool in build],
        "missing_build_packages": packages(build),
    }


def host_class(system: dict[str, str], python: str) -> str:
    """Return what binaries depend on: the system as volta_facts tells it, and the Python."""
    name, version = system["id"] or "linux", system["version"] or "0"
    return f"{name}-{version}-{system['arch']}-cp{python.replace('.', '')}"


def main() -> None:
    module = AnsibleModule(
        argument_spec={"os": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    system = module.params["os"]
    python = find_python(system)
    module.exit_json(
        changed=False,
        python=python,
        **missing_tools(python, dnf=shutil.which("dnf") is not None),
        **{"class": host_class(system, python["version"])},
    )


if __name__ == "__main__":
    main()
