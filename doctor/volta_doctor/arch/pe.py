"""Reads what matters of a Windows program or DLL: sections with device code, and its needs.

The layout is that of Microsoft's "PE Format".
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.facts.elf import NotRead, Readable, Section, read_at

MAGIC = b"MZ"

_SECTION = struct.Struct("<8sIIII16x")
_SECTIONS = 96  # the loader's own limit
_LIBRARIES = 1024
_NAME_BYTES = 256
# Names are cut to eight bytes.
_NAMES = {
    ".nv_fatb": ".nv_fatbin",
    "__nv_rel": "__nv_relfatbin",
    ".nvFatBi": ".nvFatBinSegment",
}
# Where the tables of imported libraries are named, the size of a row and of what precedes a name
_IMPORTS = ((1, 20, 12), (13, 32, 4))


class Image(NamedTuple):
    """The sections, named as in an ELF file, and the names of the libraries that are asked for."""

    sections: list[Section]
    needs: list[str]


class _Placed(NamedTuple):
    address: int
    section: Section


def read(file: Readable) -> Image | None:
    """Return a 64-bit image, None for a program of another kind. Raises NotRead."""
    try:
        (start,) = struct.unpack("<I", read_at(file, 0x3C, 4))
        header = read_at(file, start, 24)
    except NotRead:
        return None  # a program for DOS, or a text that starts so
    if not header.startswith(b"PE\0\0"):
        return None
    count, optional_bytes = struct.unpack_from("<H12xH", header, 6)
    optional = read_at(file, start + 24, optional_bytes)
    if optional[:2] != b"\x0b\x02":
        return None
    if count > _SECTIONS:
        raise NotRead(f"has {count} sections, more than Windows loads")
    table = read_at(file, start + 24 + optional_bytes, count * _SECTION.size)
    placed = [_placed(*row) for row in _SECTION.iter_unpack(table)]
    return Image([section for _, section in placed], list(_needs(file, optional, placed)))


def _placed(name: bytes, memory_bytes: int, address: int, size: int, offset: int) -> _Placed:
    text = name.rstrip(b"\0").decode(errors="replace")
    size = min(size, memory_bytes) if memory_bytes else size
    return _Placed(address, Section(_NAMES.get(text, text), offset, size, 0))


def _needs(file: Readable, optional: bytes, placed: list[_Placed]) -> Iterator[str]:
    for directory, row_bytes, before_name in _IMPORTS:
        place = 112 + 8 * directory
        if len(optional) < place + 8:
            continue
        (address,) = struct.unpack_from("<I", optional, place)
        for row in range(_LIBRARIES if address else 0):
            data = _at(file, placed, address + row * row_bytes, row_bytes)
            (name_address,) = struct.unpack_from("<I", data, before_name)
            if not name_address:
                break
            text = _at(file, placed, name_address, _NAME_BYTES)
            yield text.split(b"\0")[0].decode(errors="replace")


def _at(file: Readable, placed: list[_Placed], address: int, size: int) -> bytes:
    """Return what lies at an address of memory, up to `size` bytes of it."""
    for begin, section in placed:
        if 0 <= address - begin < section.size:
            left = section.size - (address - begin)
            return read_at(file, section.offset + address - begin, min(size, left)).ljust(
                size, b"\0"
            )
    raise NotRead(f"names libraries at {address:#x}, where it has no section")
