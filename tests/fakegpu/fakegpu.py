"""Fake V100s: a libnvidia-ml.so.1 that answers from a snapshot of the doctor's NVML facts.

python tests/fakegpu/fakegpu.py run v100-sxm2-16gb-x8 -- bash     a shell on that host
python tests/fakegpu/fakegpu.py boot                              in there: what a reboot does
python tests/fakegpu/fakegpu.py expand ecc-pending                the whole snapshot, as JSON

A snapshot is the NVML section of the doctor's facts, or what differs from one: `{"base": a file
beside it, "set": {"gpus.2.ecc.pending": false}, "omit": [functions that the driver lacks]}`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

SOURCES = Path(__file__).parent
SNAPSHOTS = SOURCES.parent / "data" / "fakegpu"
STATE_VARIABLE = "VOLTA_FAKE_NVML"

# What a reboot does to a GPU: what the driver held is back at its default ...
RESET_AT_BOOT = {
    "persistence": "0",
    "compute_mode": "default",
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


def load(snapshot: str | Path) -> tuple[dict[str, Any], list[str]]:
    """The facts and the omitted functions of a snapshot: a file, or a name in the test data."""
    path = Path(snapshot)
    if path.suffix != ".json":
        path = SNAPSHOTS / f"{snapshot}.json"
    content = json.loads(path.read_text())
    if "base" not in content:
        return content, []
    facts, omit = load(path.parent / content["base"])
    for dotted, value in content.get("set", {}).items():
        *parents, last = (int(step) if step.isdigit() else step for step in dotted.split("."))
        place: Any = facts
        for step in parents:
            place = place[step]
        place[last] = value
    return facts, omit + content.get("omit", [])


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


def build(directory: Path, omit: Sequence[str] = ()) -> None:
    """Compile the library into `directory`, without the functions in `omit`."""
    exports = directory / "exports.map"
    exports.write_text(f"{{ global: nvml*; local: {' '.join(f'{name};' for name in omit)} *; }};\n")
    command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", f"-Wl,--version-script={exports}"]
    subprocess.run(
        [*command, "-o", directory / "libnvidia-ml.so.1", *sorted(SOURCES.glob("*.c"))], check=True
    )


def environment(library: Path, state: Path) -> dict[str, str]:
    """The environment of a process on the host of `state`; `library` is where build() wrote."""
    paths = [str(library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(paths), STATE_VARIABLE: str(state)}


def write_state(state: Path, facts: dict[str, Any]) -> None:
    """Write the state that the library reads."""
    state.write_text("\n".join(flatten(facts)) + "\n")


def reboot(state: Path) -> None:
    """Do to the state what a reboot does to the host; a reading that is an error stays one."""
    lines = state.read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    for path in values:
        gpu = ".".join(path.split(".", 2)[:2])
        name = path.removeprefix(f"{gpu}.")
        if name in RESET_AT_BOOT:
            values[path] = RESET_AT_BOOT[name]
        elif name in COPIED_AT_BOOT:
            values[path] = values[f"{gpu}.{COPIED_AT_BOOT[name]}"]
    errors = [line for line in lines if "=" not in line]
    state.write_text("\n".join([*(f"{k}={v}" for k, v in values.items()), *errors]) + "\n")


@click.group()
def main() -> None:
    """Fake V100s for tests and demos."""


@main.command()
@click.argument("snapshot")
@click.argument("command", nargs=-1, required=True)
def run(snapshot: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on the host of SNAPSHOT (a file, or a name in tests/data/fakegpu)."""
    facts, omit = load(snapshot)
    with tempfile.TemporaryDirectory(prefix="fakegpu-") as name:
        directory = Path(name)
        build(directory, omit)
        write_state(directory / "state", facts)
        env = environment(directory, directory / "state")
        sys.exit(subprocess.run(command, env=env, check=False).returncode)


@main.command()
@click.argument("state", envvar=STATE_VARIABLE, type=click.Path(exists=True, path_type=Path))
def boot(state: Path) -> None:
    """Reboot the host of STATE (default: the one that this shell runs on)."""
    reboot(state)


@main.command()
@click.argument("snapshot")
def expand(snapshot: str) -> None:
    """Print the whole of SNAPSHOT as JSON."""
    facts, _ = load(snapshot)
    click.echo(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
