"""The project's own source, as one reproducible archive that hosts build from."""

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from volta_provision.errors import StackError

# What a release is made of: the wheel's sources, and what is rendered into it.
PARTS = (
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "csrc",
    "doctor",
    "runtime",
    "provision",
    "templates",
)
SKIPPED_DIRS = {"__pycache__", "build", ".mypy_cache", ".ruff_cache"}
SKIPPED_SUFFIXES = {".pyc", ".so", ".o"}


def find_source() -> Path:
    """Return the root of the checkout that this package was installed from (editable)."""
    root = Path(__file__).resolve().parents[2]
    missing = [part for part in PARTS if not (root / part).exists()]
    if missing:
        raise StackError(
            f"{root}: not a checkout of the project (no {', '.join(missing)}); "
            "run volta-stack from the .venv that `./volta up` makes, or give --source"
        )
    return root


def pack(files: Iterable[tuple[str, bytes, bool]]) -> bytes:
    """Return an uncompressed tar of (name, content, executable), the same bytes on every machine.

    Names are sorted; times, owners and modes are normalised.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data, executable in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if executable else 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pack_source(root: Path) -> tuple[bytes, str]:
    """Return a tar of the source and its `sha256:<hex>`; equal sources give equal ones."""
    data = pack(
        (path.relative_to(root).as_posix(), path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in _files(root)
    )
    return data, f"sha256:{hashlib.sha256(data).hexdigest()}"


def _files(root: Path) -> Iterator[Path]:
    for part in PARTS:
        top = root / part
        if top.is_file():
            yield top
            continue
        for path in top.rglob("*"):
            inside = path.relative_to(top).parts[:-1]
            wanted = path.suffix not in SKIPPED_SUFFIXES and not SKIPPED_DIRS.intersection(inside)
            if wanted and path.is_file():
                yield path
