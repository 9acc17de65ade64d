"""Fake V100 hosts: a libnvidia-ml.so.1, an nvidia-smi and a /sys that answer from a snapshot.

python tests/fakegpu/fakegpu.py run dgx-1 -- volta-doctor check   what the doctor says of that host
python tests/fakegpu/fakegpu.py run dgx-1 -- bash                 a shell on it
python tests/fakegpu/fakegpu.py boot                              in there: what a reboot does
python tests/fakegpu/fakegpu.py expand ecc-dbe-vol                the whole snapshot, as JSON

tests/data/fakegpu/README.md says what a snapshot is and which there are.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from fakehost import make_tree
from snapshots import STATE_VARIABLE, Fake, flatten, load
from state_file import reboot

SOURCES = Path(__file__).parent


def build(directory: Path, omit: Sequence[str] = (), define: Sequence[str] = ()) -> Path:
    """Compile the library into `directory`, without the functions in `omit`; return its path.

    `define` are macros: FAKE_STATE, the state's file where no variable names one, and
    FAKE_VERSION, the only driver version that the library works with.
    """
    exports = directory / "exports.map"
    exports.write_text(f"{{ global: nvml*; local: {' '.join(f'{name};' for name in omit)} *; }};\n")
    library = directory / "libnvidia-ml.so.1"
    # ldconfig links by the soname.
    linker = f"-Wl,--version-script={exports},-soname,{library.name}"
    command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", linker]
    macros = [f"-D{macro}" for macro in define]
    subprocess.run([*command, *macros, "-o", library, *sorted(SOURCES.glob("*.c"))], check=True)
    return library


def environment(library: Path, state: Path) -> dict[str, str]:
    """The environment of a process for which `library`, a directory, answers from `state`."""
    paths = [str(library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(paths), STATE_VARIABLE: str(state)}


def write_state(state: Path, fake: Fake) -> None:
    """Write the state that the library reads."""
    state.write_text("\n".join(flatten(fake.state)) + "\n")


def host_environment(directory: Path, fake: Fake, library: Path | None = None) -> dict[str, str]:
    """Make a whole host in `directory`; return the environment of a process on it."""
    write_state(directory / "state", fake)
    library = library or build(directory, fake.omit)
    root = make_tree(directory / "root", fake, library)
    env = environment(root / "usr/lib/x86_64-linux-gnu", directory / "state")
    return env | {"VOLTA_DOCTOR_SYSROOT": str(root)}


@click.group()
def main() -> None:
    """Fake V100s for tests and demos."""


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("snapshot")
@click.argument("command", nargs=-1, required=True)
def run(snapshot: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on the host of SNAPSHOT (a file, or a name in tests/data/fakegpu)."""
    with tempfile.TemporaryDirectory(prefix="fakegpu-") as name:
        env = host_environment(Path(name), load(snapshot))
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
    click.echo(json.dumps(asdict(load(snapshot)), indent=1))


if __name__ == "__main__":
    main()
