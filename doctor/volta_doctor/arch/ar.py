"""Reads the table of contents of a static archive (ar(5)): GNU's, its thin ones, BSD's names."""

from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.facts.elf import NotRead, Readable, read_at

MAGIC, THIN = b"!<arch>\n", b"!<thin>\n"

_HEADER_BYTES = 60
_MEMBERS = 1 << 16  # libcublas_static.a has some thousands
_LONG_NAMES_BYTES = 1 << 22
_NAME_BYTES = 1024
_INDEXES = ("/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED", "__.SYMDEF_64", "/<ECSYMBOLS>/")


class Member(NamedTuple):
    """One member; its content lies at `offset`, for None in a file of that name."""

    name: str
    offset: int | None
    size: int


def members(file: Readable, size: int) -> Iterator[Member]:
    """Yield the members but not the indexes. Raises NotRead where the archive makes no sense."""
    is_thin = read_at(file, 0, len(MAGIC)) == THIN
    position, long_names = len(MAGIC), b""
    for _ in range(_MEMBERS):
        if position >= size:
            return
        header = read_at(file, position, _HEADER_BYTES)
        name, length = header[:16].decode(errors="replace").rstrip(), header[48:58].strip()
        if header[58:] != b"`\n" or not length.isdigit():
            raise NotRead(f"has something else than the header of a member at {position}")
        start, bytes_ = position + _HEADER_BYTES, int(length)
        is_inside = not is_thin or name in (*_INDEXES, "//")
        position = start + (bytes_ + bytes_ % 2 if is_inside else 0)
        if position > size + 1:
            raise NotRead(f"is cut short: {name} has {bytes_} bytes at {start}")
        if name == "//":
            long_names = read_at(file, start, min(bytes_, _LONG_NAMES_BYTES))
        elif name.startswith("#1/") and name[3:].isdigit():
            skipped = min(int(name[3:]), bytes_)
            text = read_at(file, start, min(skipped, _NAME_BYTES))
            name = text.rstrip(b"\0").decode(errors="replace")
            start, bytes_ = start + skipped, bytes_ - skipped
        elif name[:1] == "/" and name[1:].isdigit():
            name = _long_name(long_names, int(name[1:]))
        if name not in (*_INDEXES, "//"):
            yield Member(name.removesuffix("/"), start if is_inside else None, bytes_)
    raise NotRead(f"has more than {_MEMBERS} members")


def _long_name(names: bytes, start: int) -> str:
    """GNU ends a name with a slash and a line feed, Microsoft with a zero."""
    text = names[start : start + _NAME_BYTES]
    return text.split(b"\n")[0].split(b"\0")[0].decode(errors="replace")
