"""Reads the header of a cubin, an ELF file with the machine code of one architecture.

NVIDIA publishes no description. This is what the ptxas of CUDA 11.8, 12.1, 12.6, 12.8, 12.9 and
13.0 write: up to ABI version 7 the architecture stands in the lowest byte of e_flags and the
release in e_version (128: 12.8); from 8 the architecture stands in the next byte, and a note tells
both. LLVM's ELF.h has the same masks.
"""

import re
from typing import NamedTuple

from volta_doctor.facts import elf
from volta_doctor.facts.elf import NotRead, Readable, read_at

_LAST_OLD_ABI = 7
_NOTE, _NOTE_BYTES = ".note.nv.tkinfo", 1 << 12
_RELEASE = re.compile(rb"release (\d+\.\d+)")
_ARCH = re.compile(rb"-arch[ =]sm_((\d+)[af]?)\b")
_A_OLD, _A_NEW = 0x800, 0x8  # code for this chip only


class Cubin(NamedTuple):
    """The architecture (90a) and the toolkit release of its ptxas, None where it says none."""

    arch: str
    release: str | None


def read(file: Readable) -> Cubin:
    """Read a cubin. Raises NotRead."""
    head = elf.header(file)
    if head.machine != elf.EM_CUDA:
        raise NotRead("is no cubin")
    if head.abi_version <= _LAST_OLD_ABI:
        suffix = "a" if head.flags & _A_OLD else ""
        release = f"{head.version // 10}.{head.version % 10}" if head.version >= 10 else None
        return Cubin(f"{head.flags & 0xFF}{suffix}", release)
    number = head.flags >> 8 & 0xFF
    note = next((s for s in elf.sections(file) if s.name == _NOTE), None)
    text = read_at(file, note.offset, min(note.size, _NOTE_BYTES)) if note else b""
    arch, made_by = _ARCH.search(text), _RELEASE.search(text)
    if arch and int(arch[2]) == number:
        name = arch[1].decode()
    else:
        name = f"{number}{'a' if head.flags & _A_NEW else ''}"
    return Cubin(name, made_by[1].decode() if made_by else None)
