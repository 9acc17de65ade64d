"""Reads what the doctor needs of an ELF file: its sections and the libraries that it asks for.

A server's environment holds a thousand shared objects, most of which end here after their section
names. The files may be truncated, changing or hostile: every read is bounded, and nothing is
mapped, for a file that shrinks under a mapping kills the process.
"""

import struct
from typing import BinaryIO, NamedTuple

# Elf64_Ehdr, Elf64_Shdr and Elf64_Dyn of the System V ABI, little-endian
_IDENT = b"\x7fELF\x02\x01"
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_DYN = struct.Struct("<qQ")
_SHT_NOBITS, _DT_NEEDED = 8, 1

_TABLE_BYTES = 1 << 22  # 65,535 headers of 64 bytes
_NAMES_BYTES = 1 << 24  # an extension with all its symbols has a few
_NAME_BYTES = 256
_LIBRARIES = 1024


class NotRead(Exception):  # noqa: N818 - it is an answer, not an accident
    """Why a file could not be read; the text completes "it ...", or "the file ..."."""


class NotElf(NotRead):
    """It is no 64-bit little-endian ELF file: a linker script, or a library for other programs."""


class Section(NamedTuple):
    """One section; `size` is 0 where it takes no bytes of the file."""

    name: str
    offset: int
    size: int
    link: int


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Return `size` bytes. Raises NotRead where the file ends before them."""
    try:
        file.seek(offset)
        data = file.read(size)
    except (OSError, ValueError, OverflowError) as error:
        raise NotRead(f"cannot be read at {offset}: {error}") from error
    if len(data) < size:
        raise NotRead(f"is cut short: {size} bytes at {offset} are not there")
    return data


def sections(file: BinaryIO) -> list[Section]:
    """Return the sections of a 64-bit little-endian ELF file. Raises NotRead."""
    file.seek(0)
    header = file.read(_EHDR.size)
    if not header.startswith(_IDENT):
        raise NotElf("is no 64-bit ELF file")
    if len(header) < _EHDR.size:
        raise NotRead("is cut short in its header")
    fields = _EHDR.unpack(header)
    offset, entry_size, count, names_index = fields[6], fields[11], fields[12], fields[13]
    if not count or entry_size < _SHDR.size or entry_size * count > _TABLE_BYTES:
        raise NotRead(f"has no section table that makes sense ({count} of {entry_size} bytes)")
    table = read_at(file, offset, entry_size * count)
    rows = [_SHDR.unpack_from(table, start) for start in range(0, len(table), entry_size)]
    if names_index >= count or rows[names_index][5] > _NAMES_BYTES:
        raise NotRead("has no section names that make sense")
    names = read_at(file, rows[names_index][4], rows[names_index][5])
    return [
        Section(_text(names, row[0]), row[4], 0 if row[1] == _SHT_NOBITS else row[5], row[6])
        for row in rows
    ]


def needed(file: BinaryIO, found: list[Section]) -> list[str]:
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
