"""GGUF files, as far as a server's memory is judged by them: sizes, and what the metadata says."""

from typing import Any

from volta_doctor.facts.checkpoint.shape import of_gguf as shape_of
from volta_doctor.probe import CannotLook, Probe

__all__ = ["parts", "read_metadata", "shape_of", "size"]


def parts(probe: Probe, path: str) -> list[str]:
    """Return the paths of all parts of a GGUF file. Raises CannotLook where one is missing."""
    from volta_runtime.checkpoint.gguf import part_names

    directory, _, own = path.rpartition("/")
    # A part other than the first is no model that a server can be told.
    names = part_names(own) if "-00001-of-" in own else [own]
    paths = [f"{directory}/{name}" for name in names]
    for part in paths:
        if not probe.exists(part):
            raise CannotLook(f"{part}: no such file")
    return paths


def size(probe: Probe, path: str) -> int:
    """Return a file's size in bytes; metadata is some MB of it, or less."""
    try:
        return probe.path(path).stat().st_size
    except OSError as error:
        raise CannotLook(f"{path}: {error.strerror}") from error


def read_metadata(probe: Probe, path: str) -> dict[str, Any]:
    """Return the pairs, without long arrays. Raises CannotLook naming the file."""
    from volta_runtime.checkpoint.gguf import read_gguf

    head = read_gguf(probe.path(path))
    if head.faults and not head.tensors:
        raise CannotLook(f"{path}: {head.faults[0].message}")
    return dict(head.metadata)
