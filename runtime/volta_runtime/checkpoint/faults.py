"""What is wrong with a checkpoint: one fault each, so that all are told and none hides another."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["fail", "unknown", "warn", "info"]


@dataclass(frozen=True)
class Fault:
    """One thing that is not as it must be.

    check: the id of the doctor's check that it breaks ("st-header"); ids are a contract.
    message: one sentence with the numbers, which names neither the file nor what to do.
    file: where it is; tensor: the tensor or module meant, empty where it is the file as a whole.
    expected, found: the two sides, short ("[4096, 256]", "F8_E4M3"); empty where none fits.
    level: fail where the model cannot be served rightly, unknown where that cannot be told because
        who looks may not, warn where it may suffer, else info.
    """

    check: str
    message: str
    file: Path
    tensor: str = ""
    expected: str = ""
    found: str = ""
    level: Level = "fail"

    def __str__(self) -> str:
        where = f"tensor {self.tensor}: " if self.tensor else ""
        return f"{self.file}: {where}{self.message}"


def few(names: Iterable[str], most: int = 8) -> str:
    """The first names in their order, and how many more there are: for a message."""
    listed = sorted(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
