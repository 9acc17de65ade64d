"""Holds the kernels' sm_70 code against audit.yaml, and tells it in docs/kernels.md.

python tests/kernels/audit.py --write docs/kernels.md
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from sass import Kernel, kernels
from v100 import warps_per_sm

REPO = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("audit.yaml")


class NoCompilerError(Exception):
    """No nvcc here makes sm_70 code; CMake's reasons."""


class Build(NamedTuple):
    """A library, the cuobjdump of the nvcc that made it, and that nvcc's release."""

    library: Path
    cuobjdump: Path
    release: str


def build(directory: Path) -> Build:
    """Build libvolta_kernels.so as users do. Raises NoCompilerError, or tells what failed."""
    launchers = [f"-DCMAKE_{x}_COMPILER_LAUNCHER=ccache" for x in ("CXX", "CUDA")]
    configure = ["cmake", "-G", "Ninja", "-S", REPO / "csrc", "-B", directory]
    configure += ["-DVOLTA_PYTHON=OFF", "-DVOLTA_CUDA=ON"]
    configure += launchers if shutil.which("ccache") else []
    done = subprocess.run(configure, capture_output=True, text=True)
    if "VOLTA_CUDA=ON needs an nvcc" in done.stderr:
        raise NoCompilerError(done.stderr)
    assert done.returncode == 0, done.stderr
    made = subprocess.run(
        ["cmake", "--build", directory, f"-j{os.cpu_count()}"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout
    nvcc = re.search(r"CUDA kernels: yes, by (\S+) \(release (\S+)\)", done.stdout)
    return Build(directory / "libvolta_kernels.so", Path(nvcc[1]).with_name("cuobjdump"), nvcc[2])


@dataclass(frozen=True)
class Instance:
    """A kernel beside the row of audit.yaml that speaks of it."""

    kernel: Kernel
    row: Mapping[str, Any]

    @cached_property
    def _match(self) -> re.Match[str]:
        return re.fullmatch(self.row["kernel"], self.kernel.name)

    def name_without(self, group: str) -> str:
        """The kernel's name with a named group as its capital letter."""
        first, last = self._match.span(group)
        return self.kernel.name[:first] + group.upper() + self.kernel.name[last:]

    @cached_property
    def names(self) -> dict[str, int | str]:
        """The named groups of the row's expression, numbers as such."""
        groups = self._match.groupdict()
        return {name: int(v) if v.isdigit() else v for name, v in groups.items()}

    def number(self, value: float | str, **more: float) -> float:
        """A number of the row, or an expression."""
        return eval(value, {}, {**self.names, **more}) if isinstance(value, str) else value

    @cached_property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.kernel.shared + self.number(self.row.get("dynamic", 0))

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return self.number(self.row["threads"])

    @cached_property
    def warps(self) -> int:
        """How many warps an SM of a V100 holds."""
        return warps_per_sm(self.kernel.registers, self.shared, self.threads)

    def faults(self) -> list[str]:
        """What is worse than the row allows."""
        kernel = self.kernel
        measured = {
            "registers": kernel.registers,
            "warps": self.warps,
            "ldg128": kernel.count(r"LDG\.E\.128"),
            "stg128": kernel.count(r"STG\.E\.128"),
            "hmma": kernel.count("HMMA"),
        }
        spilled = {
            "bytes of stack": kernel.stack,
            "bytes of local memory": kernel.local,
            "loads and stores of local memory": kernel.count("LDL|STL"),
        }
        told = [f"{kernel.name}: {n} {what}" for what, n in spilled.items() if n]
        for what, n in measured.items():
            if what not in self.row:
                continue
            limit = self.number(self.row[what])
            if n > limit if what == "registers" else n < limit:
                bound = "at most" if what == "registers" else "at least"
                told.append(f"{kernel.name}: {what} {n}, {bound} {limit}")
        return told


def rows() -> list[dict[str, Any]]:
    """The rows of audit.yaml."""
    return yaml.safe_load(ROWS.read_text())


def joined(found: list[Kernel], table: list[dict[str, Any]]) -> tuple[list[Instance], list[str]]:
    """Every kernel with its row, in the rows' order, and what is told of kernels that have none, or
    more than one, and of rows without a kernel.
    """
    instances = [
        Instance(kernel, row)
        for row in table
        for kernel in found
        if re.fullmatch(row["kernel"], kernel.name)
    ]
    used = {instance.row["kernel"] for instance in instances}
    times = Counter(instance.kernel.name for instance in instances)
    told = [f"{row['kernel']}: no such kernel" for row in table if row["kernel"] not in used]
    told += [
        f"{kernel.name}: {times[kernel.name]} rows of {ROWS.name}, needs one"
        for kernel in found
        if times[kernel.name] != 1
    ]
    return instances, told


def main() -> None:
    """Build, judge, and write the tables into a page."""
    from audit_page import refreshed

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
