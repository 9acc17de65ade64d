"""Reads what the doctor needs of an ELF file: its sections and the libraries that it asks for.

A server's environment holds a thousand shared objects, most of which end here after their section
names. The files may be truncated, changing or hostile: every read is bounded, and nothing is
mapped, for a file that shrinks under a mapping kills the process.
"""

import struct
from typing import NamedTuple, Protocol

EM_CUDA = 190  # a cubin
HEADER_BYTES = 64

# Elf64_Ehdr, Elf64_Shdr and Elf64_Dyn of the System V ABI, little-endian
_IDENT = b"\x7fELF\x02\x01"
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_DYN = struct.Struct("<qQ")
_SHT_NOBITS, _DT_NEEDED, _SHN_XINDEX = 8, 1, 0xFFFF

_TABLE_BYTES = 1 << 23  # 131,072 headers of 64 bytes
_NAMES_BYTES = 1 << 24  # an extension with all its symbols has a few
_NAME_BYTES = 256
_LIBRARIES = 1024


class NotRead(Exception):  # noqa: N818 - it is an answer, not an accident
    """Why a file could not be read; the text completes "it ...", or "the file ..."."""


class NotElf(NotRead):
    """It is no 64-bit little-endian ELF file: a linker script, or a library for other programs."""


class Readable(Protocol):
    """What the readers ask of a file: it need not be one on disk."""

    def seek(self, offset: int, /) -> int:
        """Go to a position counted from the start."""

    def read(self, size: int, /) -> bytes:
        """Return as many bytes as there are, up to `size`."""


class Header(NamedTuple):
    """What the first 64 bytes say; `section_*` describe the section table."""

    abi: int
    abi_version: int
    machine: int
    version: int
    flags: int
    section_offset: int
    section_bytes: int
    section_count: int
    names_index: int


class Section(NamedTuple):
    """One section; `size` is 0 where it takes no bytes of the file."""

    name: str
    offset: int
    size: int
    link: int


def read_at(file: Readable, offset: int, size: int) -> bytes:
    """Return `size` bytes. Raises NotRead where the file ends before them."""
    try:
        file.seek(offset)
        data = file.read(size)
    except (OSError, ValueError, OverflowError) as error:
        raise NotRead(f"cannot be read at {offset}: {error}") from error
    if len(data) < size:
        raise NotRead(f"is cut short: {size} bytes at {offset} are not there")
    return data


def header(file: Readable) -> Header:
    """Return the header of a 64-bit little-endian ELF file. Raises NotRead."""
    try:
        file.seek(0)
        data = file.read(_EHDR.size)
    except OSError as error:
        raise NotRead(f"cannot be read: {error}") from error
    if not data.startswith(_IDENT):
        raise NotElf("is no 64-bit ELF file")
    if len(data) < _EHDR.size:
        raise NotRead("is cut short in its header")
    ident, _, machine, version, _, _, offset, flags, _, _, _, size, count, names = _EHDR.unpack(
        data
    )
    return Header(ident[7], ident[8], machine, version, flags, offset, size, count, names)


def sections(file: Readable) -> list[Section]:
    """Return the sections of a 64-bit little-endian ELF file. Raises NotRead."""
    head = header(file)
    size, count, names_index = head.section_bytes, head.section_count, head.names_index
    if not count and head.section_offset and size >= _SHDR.size:
        # As many sections as its header cannot count: the first of them says how many.
        first = _SHDR.unpack_from(read_at(file, head.section_offset, size))
        count = first[5]
        names_index = first[6] if names_index == _SHN_XINDEX else names_index
    if not count or size < _SHDR.size or size * count > _TABLE_BYTES:
        raise NotRead(f"has no section table that makes sense ({count} of {size} bytes)")
    table = read_at(file, head.section_offset, size * count)
    of_names = _SHDR.unpack_from(table, names_index * size) if names_index < count else None
    if of_names is None or not 0 < of_names[5] <= _NAMES_BYTES:
        raise NotRead("has no section names that make sense")
    names = read_at(file, of_names[4], of_names[5])
    rows = (_SHDR.unpack_from(table, start) for start in range(0, len(table), size))
    return [
        Section(_text(names, row[0]), row[4], 0 if row[1] == _SHT_NOBITS else row[5], row[6])
        for row in rows
    ]


def needed(file: Readable, found: list[Section]) -> list[str]:
    """Return the names of the libraries that a file asks for. Raises NotRead."""
    dynamic = next((section for section in found if section.name == ".dynamic"), None)
    if dynamic is None or not dynamic.size:
        return []
    if dynamic.link >= len(found) or dynamic.size > _TABLE_BYTES:
        raise NotRead("has no dynamic section that makes sense")
    strings = found[dynamic.link]
    table = read_at(file, dynamic.offset, dynamic.size - dynamic.size % _DYN.size)
    wanted = [value for tag, value in _DYN.iter_unpack(table) if tag == _DT_NEEDED]
    if len(wanted) > _LIBRARIES or any(value >= strings.size for value in wanted):
        raise NotRead(f"has {len(wanted)} names of libraries that make no sense")
    texts = (
        read_at(file, strings.offset + value, min(_NAME_BYTES, strings.size - value))
        for value in wanted
    )
    return [_text(text, 0) for text in texts]


def _text(table: bytes, start: int) -> str:
    end = table.find(b"\0", start, start + _NAME_BYTES)
    return table[start : end if end >= 0 else start + _NAME_BYTES].decode(errors="replace")
