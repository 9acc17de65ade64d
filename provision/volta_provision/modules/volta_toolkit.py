#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""The CUDA toolkit that builds kernels for Volta: which nvcc there is, and which is met first."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_toolkit
short_description: Find the CUDA toolkit that makes sm_70, and put it before others
description:
  - Reads the release of an nvcc, and which nvcc and ptxas a login shell meets first.
  - Points the alternative C(/usr/local/cuda) to the wanted toolkit where it points elsewhere.
options:
  home:
    description: The toolkit's directory, with C(bin/nvcc) in it.
    type: path
    required: true
  link:
    description: The alternative that must lead to O(home); empty where the distribution has none.
    type: path
    default: ""
  minimum:
    description: The first CUDA release whose nvcc makes code for Volta.
    type: str
    required: true
  below:
    description: The first CUDA release that does not any more.
    type: str
    required: true
  prove:
    description: Compile an empty kernel for sm_70.
    type: bool
    default: false
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Use CUDA 12.9
  volta.stack.volta_toolkit:
    home: /usr/local/cuda-12.9
    link: /usr/local/cuda
    minimum: "9.0"
    below: "13.0"
"""
RETURN = r"""
installed:
  description: Whether the toolkit is there.
  type: bool
  returned: always
version:
  description: The release that its nvcc tells, as C(12.9); empty where there is none.
  type: str
  returned: always
problems:
  description: Sentences about what keeps builds from making code for Volta, each with its remedy.
  type: list
  elements: str
  returned: always
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

KERNEL = "__global__ void empty() {}\n"
# In a shell as users and services get it, not in that of Ansible's connection.
FIRST = "for tool in nvcc ptxas; do command -v $tool || echo; done"
LIMIT_S = 120


def release(nvcc: Path) -> str:
    """Return the CUDA release that an nvcc or a ptxas tells, empty where it tells none."""
    try:
        done = subprocess.run(
            [str(nvcc), "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except OSError:
        return ""
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found[1] if found else ""


def numbers(version: str) -> tuple[int, ...]:
    """Return 12.9 as (12, 9)."""
    return tuple(int(part) for part in version.split("."))


def suits(version: str, minimum: str, below: str) -> bool:
    """Say whether the nvcc of this release makes code for Volta."""
    return bool(version) and numbers(minimum) <= numbers(version) < numbers(below)


def met_first(shell: tuple[str, ...] = ("bash", "-lc")) -> list[str]:
    """Return the paths of the nvcc and the ptxas that a login shell finds, empty for none."""
    environment = {"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"}
    done = subprocess.run(
        [*shell, FIRST], capture_output=True, text=True, env=environment, check=False
    )
    return [*done.stdout.splitlines(), "", ""][:2]


def path_problems(first: list[str], minimum: str, below: str) -> list[str]:
    """Return what is wrong with the nvcc and the ptxas that are met first."""
    problems = []
    for path in filter(None, first):
        version = release(Path(path))
        if version and not suits(version, minimum, below):
            problems.append(
                f"{path} is of CUDA {version} and comes first on PATH: it does not make code for "
                f"Volta (\"Value 'sm_70' is not defined\" when an older nvcc meets its ptxas). "
                "Take its directory out of PATH (/etc/environment, /etc/profile.d), or remove it."
            )
    return problems


def compile_problem(nvcc: Path) -> str:
    """Compile an empty kernel for sm_70; return what the compiler says where it cannot."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "empty.cu")
        source.write_text(KERNEL)
        # The toolkit's own directory first: its nvcc takes the ptxas that it meets on PATH.
        environment = {**os.environ, "PATH": f"{nvcc.parent}:{os.environ.get('PATH', '')}"}
        command = [str(nvcc), "-arch=sm_70", "-cubin", "-o", f"{scratch}/empty.cubin", str(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
        )
        if done.returncode == 0 and Path(scratch, "empty.cubin").exists():
            return ""
        said = (done.stderr or done.stdout).strip().splitlines()
        return (
            f"{nvcc} cannot make code for sm_70: {' '.join(said[-3:]) or done.returncode}. "
            "Where it names an unsupported host compiler, install an older g++ and set it by "
            "NVCC_PREPEND_FLAGS or CUDAHOSTCXX in runtime_environment."
        )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "link": {"type": "path", "default": ""},
            "minimum": {"type": "str", "required": True},
            "below": {"type": "str", "required": True},
            "prove": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    asked: dict[str, Any] = module.params
    home, link = Path(asked["home"]), asked["link"]
    nvcc = home / "bin/nvcc"
    version = release(nvcc)
    result: dict[str, Any] = {
        "changed": False,
        "installed": bool(version),
        "version": version,
        "problems": [],
    }
    if not version:
        module.exit_json(**result)
    if link and os.path.realpath(link) != os.path.realpath(home):
        result["changed"] = True
        result["diff"] = {"before": f"{os.path.realpath(link)}\n", "after": f"{home}\n"}
        if not module.check_mode:
            name = Path(link).name
            module.run_command(
                ["update-alternatives", "--install", link, name, str(home), "1"], check_rc=True
            )
            module.run_command(["update-alternatives", "--set", name, str(home)], check_rc=True)
    limits = asked["minimum"], asked["below"]
    if not suits(version, *limits):
        result["problems"].append(
            f"{nvcc} is of CUDA {version}: code for Volta is made from {limits[0]} to before "
            f"{limits[1]}. Set cuda_version to a release between."
        )
    result["problems"] += path_problems(met_first(), *limits)
    if asked["prove"] and not result["problems"]:
        result["problems"] += filter(None, [compile_problem(nvcc)])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
