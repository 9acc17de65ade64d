"""The state file of fake GPUs, as library.c reads it: lines `path=value` or `path!error`.

Only the standard library: a fake host reads and writes its state by this module too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

# What a reboot does to a GPU: what the driver held is back at its default ...
RESET_AT_BOOT = {
    "persistence": "0",
    "compute_mode": "default",
    "accounting": "0",
    "pcie.replays": "0",
    "ecc.volatile_corrected": "0",
    "ecc.volatile_uncorrected": "0",
    "retired_pages.pending": "0",
}
# ... and what was pending, or the card's own setting, holds.
COPIED_AT_BOOT = {
    "ecc.current": "ecc.pending",
    "driver_model.current": "driver_model.pending",
    "power.limit_mw": "power.default_mw",
    "power.enforced_mw": "power.default_mw",
    "application_clocks.graphics": "application_clocks.default_graphics",
    "application_clocks.memory": "application_clocks.default_memory",
}


def change(state: Path, edit: Callable[[dict[str, str]], None]) -> None:
    """Edit the readings by path (`=value` or `!error`), and write them beside and rename."""
    lines = state.read_text().splitlines()
    ends = [min(line.find(mark) for mark in "=!" if mark in line) for line in lines]
    readings = {line[:end]: line[end:] for line, end in zip(lines, ends, strict=True)}
    edit(readings)
    new = state.with_name(state.name + ".py-new")
    new.write_text("".join(f"{path}{said}\n" for path, said in readings.items()))
    new.rename(state)


def reboot(state: Path) -> None:
    """Do to the state what a reboot does to the host; a reading that is an error stays one."""

    def edit(readings: dict[str, str]) -> None:
        for path, said in list(readings.items()):
            gpu = ".".join(path.split(".", 2)[:2])
            name = path.removeprefix(f"{gpu}.")
            if said.startswith("!"):
                continue
            if name in RESET_AT_BOOT:
                readings[path] = f"={RESET_AT_BOOT[name]}"
            elif name in COPIED_AT_BOOT:
                readings[path] = readings[f"{gpu}.{COPIED_AT_BOOT[name]}"]

    change(state, edit)


def read(state: Path) -> dict[str, Any]:
    """Return the readings as the nested facts that they were made of; numbers are numbers."""
    whole: dict[str, Any] = {}
    for line in state.read_text().splitlines():
        end = min(line.find(mark) for mark in "=!" if mark in line)
        node = whole
        for step in line[:end].split("."):
            node = node.setdefault(step, {})
        said = line[end + 1 :]
        node[""] = {"error": int(said)} if line[end] == "!" else said
    facts: dict[str, Any] = {name: _value(name, node) for name, node in whole.items()}
    return facts


_LISTS = (
    "gpus",
    "nvlinks",
    "compute_processes",
    "graphics_processes",
    "single_bit",
    "double_bit",
)


def _value(name: str, node: dict[str, Any]) -> Any:
    said = node.get("")
    if name in _LISTS and isinstance(said, str):
        return [_value("", node[str(item)]) for item in range(int(said))]
    if said is None:
        return {step: _value(step, child) for step, child in node.items()}
    number = isinstance(said, str) and said.isdigit() and str(int(said)) == said
    return int(said) if number else said
