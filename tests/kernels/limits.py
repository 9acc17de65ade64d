"""Kernels beside their rows of audit.yaml, which say what each must keep of its machine code."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from sass import Kernel
from v100 import warps_per_sm

ROWS = Path(__file__).with_name("audit.yaml")


@dataclass(frozen=True)
class Instance:
    """A kernel beside the row of audit.yaml that speaks of it."""

    kernel: Kernel
    row: Mapping[str, Any]

    @cached_property
    def names(self) -> dict[str, int | str]:
        """The named groups of the row's expression, numbers as such."""
        groups = re.fullmatch(self.row["kernel"], self.kernel.name).groupdict()
        return {name: int(v) if v.isdigit() else v for name, v in groups.items()}

    def number(self, value: float | str, **more: float) -> float:
        """A number of the row, or an expression."""
        names = {"bits_of": _document()["bits"], **self.names, **more}
        return eval(value, names) if isinstance(value, str) else value

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
        kernel, told = self.kernel, []
        for what, measure in _AT_MOST.items():
            n, limit = measure(self), self.number(self.row.get(what, _UNSAID[what]))
            if n > limit:
                told.append(f"{kernel.name}: {what} {n}, at most {limit}")
        for what, measure in _AT_LEAST.items():
            n, limit = measure(self), self.number(self.row.get(what, 0))
            if n < limit:
                told.append(f"{kernel.name}: {what} {n}, at least {limit}")
        return told


_Measure = Callable[[Instance], int]
_AT_MOST: dict[str, _Measure] = {
    "registers": lambda one: one.kernel.registers,
    # Spilled registers are on the stack; what is indexed at run time may be elsewhere.
    "stack": lambda one: one.kernel.stack + one.kernel.local,
}
_UNSAID = {"registers": 255, "stack": 0}
_AT_LEAST: dict[str, _Measure] = {
    "warps": lambda one: one.warps,
    "ldg128": lambda one: one.kernel.count(r"LDG\S*\.128"),
    "stg128": lambda one: one.kernel.count(r"STG\S*\.128"),
    "hmma": lambda one: one.kernel.count("HMMA"),
}
_NEEDED = {"kernel", "does", "threads"}
_MORE = {"dynamic", "decode", *_AT_MOST, *_AT_LEAST}
_DECODE = {"label", "m", "weights", "bits"}


@cache
def _document() -> dict[str, Any]:
    return yaml.safe_load(ROWS.read_text())


def rows() -> list[dict[str, Any]]:
    """The rows of audit.yaml. Raises ValueError for one that says what nothing reads."""
    table = _document()["kernels"]
    for row in table:
        decode = row.get("decode", dict.fromkeys(_DECODE))
        if not (set(row) <= _NEEDED | _MORE and set(row) >= _NEEDED and set(decode) == _DECODE):
            raise ValueError(f"{ROWS.name}: {row} lacks what a row needs, or has what none has")
    return table


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
