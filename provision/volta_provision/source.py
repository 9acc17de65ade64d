"""The project's own source, as one reproducible archive that hosts build from."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
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


def pack_source(root: Path) -> tuple[bytes, str]:
    """Return an uncompressed tar of the source and its `sha256:<hex>`.

    Names are sorted and times, owners and modes normalised, so that equal sources give
    equal bytes on every machine.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(_files(root), key=lambda file: file.relative_to(root).as_posix()):
            info = tarfile.TarInfo(path.relative_to(root).as_posix())
            data = path.read_bytes()
            info.size = len(data)
            info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
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
