"""Reads which GPUs an ELF file carries device code for, from the headers of its fat binaries.

NVIDIA publishes no description. The layout is what nvcc 11.8, 12.8 and 13.0 write, held against
what cuobjdump lists: a section is a row of regions, each with a header {u32 magic, u16 version,
u16 header bytes, u64 bytes that follow} and a row of entries {u16 kind, u16 version, u32 header
bytes, u64 payload bytes, u32 compressed bytes, u32, u16 minor, u16 major, u32 arch, u32, u32,
u64 flags}. Payloads are skipped, so that compression does not matter.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from volta_doctor.facts.elf import NotRead, Section, read_at

# __nv_relfatbin holds relocatable device code, before and after its link.
SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_MAGIC = b"\x50\xed\x55\xba"
_REGION = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_PTX, _SASS = 1, (2, 16)  # 8 is code for link-time optimisation, which no driver runs
_SUFFIXES = ((1 << 20, "a"), (1 << 21, "f"))  # code for one chip, or for one family
_PIECES = 1 << 18  # in one file; libtorch_cuda.so of 2.10.0 has 3,258
_SECTIONS_READ = 16
_CHUNK_BYTES = 4096


class DeviceCode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Machine code (SASS) and PTX by architecture (70, 90a, 100f), with the number of pieces.

    `problem` says why there may be more, empty where all was read.
    """

    sass: dict[str, int] = {}
    ptx: dict[str, int] = {}
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.sass or self.ptx or self.problem)


def device_code(file: BinaryIO, found: list[Section]) -> DeviceCode:
    """Return the device code in the given sections of an ELF file."""
    sass: dict[str, int] = {}
    ptx: dict[str, int] = {}
    problem = ""
    try:
        for seen, (kind, arch) in enumerate(_pieces(file, found)):
            if seen == _PIECES:
                raise NotRead(f"has more than {_PIECES} pieces of device code")
            if kind in _SASS:
                sass[arch] = sass.get(arch, 0) + 1
            elif kind == _PTX:
                ptx[arch] = ptx.get(arch, 0) + 1
    except NotRead as reason:
        problem = str(reason)
    return DeviceCode(sass=_sorted(sass), ptx=_sorted(ptx), problem=problem)


def number(arch: str) -> int:
    """Return the number in an architecture's name: 90 for 90a."""
    return int(arch.rstrip("af"))


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return {arch: counts[arch] for arch in sorted(counts, key=lambda a: (number(a), a))}


def _pieces(file: BinaryIO, found: list[Section]) -> Iterator[tuple[int, str]]:
    """Yield kind and architecture of every piece of device code."""
    for section in [section for section in found if section.name in SECTIONS][:_SECTIONS_READ]:
        position, end = section.offset, section.offset + section.size
        for _ in range(_PIECES):
            start = _next_region(file, position, end)
            if start is None:
                break
            _, _, header_bytes, size = _REGION.unpack(read_at(file, start, _REGION.size))
            position = start + header_bytes + size
            if header_bytes < _REGION.size or position > end:
                raise NotRead(f"has a fat binary at {start} that its section does not hold")
            yield from _entries(file, start + header_bytes, position)
        else:
            raise NotRead(f"has more than {_PIECES} fat binaries")


def _next_region(file: BinaryIO, position: int, end: int) -> int | None:
    """Return where the next region starts, None where only padding is left."""
    while end - position >= _REGION.size:
        chunk = read_at(file, position, min(_CHUNK_BYTES, end - position))
        if chunk.startswith(_MAGIC):
            return position
        padding = len(chunk) - len(chunk.lstrip(b"\0"))
        if not padding:
            raise NotRead(f"holds something else than fat binaries at {position}")
        position += padding
    return None


def _entries(file: BinaryIO, position: int, end: int) -> Iterator[tuple[int, str]]:
    while position + _ENTRY.size <= end:
        entry = _ENTRY.unpack(read_at(file, position, _ENTRY.size))
        kind, header_bytes, size, arch, flags = entry[0], entry[2], entry[3], entry[8], entry[11]
        if header_bytes < _ENTRY.size or position + header_bytes + size > end or arch > 9999:
            raise NotRead(f"has device code at {position} that its fat binary does not hold")
        yield kind, f"{arch}{''.join(suffix for bit, suffix in _SUFFIXES if flags & bit)}"
        position += header_bytes + size
