"""Holds the kernels' sm_70 code against audit.yaml, and tells it in docs/kernels.md.

python tests/kernels/audit.py --write docs/kernels.md
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from audit_page import refreshed
from limits import joined, rows
from sass import kernels

REPO = Path(__file__).resolve().parents[2]


class CannotBuildError(Exception):
    """What is missing here to make sm_70 code."""


class Build(NamedTuple):
    """A library, the cuobjdump of the nvcc that made it, and that nvcc's release."""

    library: Path
    cuobjdump: Path
    release: str


def build(directory: Path) -> Build:
    """Build libvolta_kernels.so as users do. Raises CannotBuildError where a tool is missing."""
    if missing := [tool for tool in ("cmake", "ninja", "c++filt") if not shutil.which(tool)]:
        raise CannotBuildError(f"{', '.join(missing)} not installed")
    launchers = [f"-DCMAKE_{x}_COMPILER_LAUNCHER=ccache" for x in ("CXX", "CUDA")]
    configure = ["cmake", "-G", "Ninja", "-S", REPO / "csrc", "-B", directory]
    configure += ["-DVOLTA_PYTHON=OFF", "-DVOLTA_CUDA=ON"]
    configure += launchers if shutil.which("ccache") else []
    done = subprocess.run(configure, capture_output=True, text=True)
    if "VOLTA_CUDA=ON needs an nvcc" in done.stderr:
        raise CannotBuildError(done.stderr)
    assert done.returncode == 0, done.stderr
    made = subprocess.run(
        ["cmake", "--build", directory, f"-j{os.cpu_count()}"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout
    nvcc = re.search(r"CUDA kernels: yes, by (\S+) \(release (\S+)\)", done.stdout)
    return Build(directory / "libvolta_kernels.so", Path(nvcc[1]).with_name("cuobjdump"), nvcc[2])


def main() -> None:
    """Build, judge, and write the tables into a page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", type=Path, help="a page with the marks of the tables")
    arguments = options.parse_args()
    made = build(REPO / "build/audit")
    instances, told = joined(kernels(made.library, made.cuobjdump), rows())
    told += [fault for instance in instances for fault in instance.faults()]
    if arguments.write:
        page = arguments.write
        page.write_text(refreshed(page.read_text(), instances, made.release))
    sys.exit("\n".join(told) if told else 0)


if __name__ == "__main__":
    main()
