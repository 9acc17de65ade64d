"""SHA256SUMS: the standard sha256sum file over a checkpoint directory."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from volta_runtime.checkpoint.errors import CheckpointError

SUMS = "SHA256SUMS"
Progress = Callable[[str, int, int], None]  # what is being done, done, total

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_CHUNK = 1 << 20


def sha256(file: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    """Hex digest of a file, read in pieces of 1 MiB; advance gets each piece's size in bytes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
            advance(len(piece))
    return digest.hexdigest()


def write_sums(directory: Path) -> None:
    """Write SHA256SUMS over every file in the directory, sorted by name."""
    lines = [f"{sha256(directory / name)}  {name}\n" for name in _files(directory)]
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(directory: Path, progress: Progress | None = None) -> None:
    """Compare every file with SHA256SUMS.

    progress gets (file name, bytes done, bytes in all). Raises CheckpointError naming the first
    file that differs, is missing, or is not listed.
    """
    expected = read_sums(directory)
    unlisted = sorted(set(_files(directory)) - expected.keys())
    if unlisted:
        raise CheckpointError(
            f"{directory / unlisted[0]}: not listed in {SUMS}; remove it, or list it there"
            " if it belongs to the checkpoint"
        )
    for name in expected:
        if not (directory / name).is_file():
            raise CheckpointError(
                f"{directory / name}: missing, but listed in {SUMS}; fetch or convert it again"
            )
    total = sum((directory / name).stat().st_size for name in expected)
    done = 0
    for name, digest in expected.items():

        def advance(size: int, name: str = name) -> None:
            nonlocal done
            done += size
            if progress:
                progress(name, done, total)

        found = sha256(directory / name, advance)
        if found != digest:
            raise CheckpointError(
                f"{directory / name}: sha256 is {found}, {SUMS} expects {digest}:"
                " the file changed or is damaged; fetch or convert it again"
            )


def _files(directory: Path) -> list[str]:
    return sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and path != directory / SUMS
    )


def read_sums(directory: Path) -> dict[str, str]:
    """Return the digests by name of SHA256SUMS. Raises CheckpointError naming the line at fault."""
    file = directory / SUMS
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise CheckpointError(
            f"{file}: missing, so nothing can be verified; for a checkpoint you trust, run"
            f" `find . -type f ! -name {SUMS} -exec sha256sum {{}} + > {SUMS}` inside it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot read: {error}") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        name = match and Path(match[2])
        if not match or not name or name.is_absolute() or ".." in name.parts:
            raise CheckpointError(
                f"{file}: line {number} is not `<sha256>  <name inside the directory>`: {line!r}"
            )
        sums[name.as_posix()] = match[1]
    if not sums:
        raise CheckpointError(f"{file}: lists no files; fetch or convert the checkpoint again")
    return sums
