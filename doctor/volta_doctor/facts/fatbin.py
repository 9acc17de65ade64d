"""Reads which GPUs an ELF file carries device code for, from the headers of its fat binaries.

NVIDIA publishes no description. The layout is what nvcc 11.8, 12.8 and 13.0 write, held against
what cuobjdump lists: a section is a row of regions, each with a header {u32 magic, u16 version,
u16 header bytes, u64 bytes that follow} and a row of entries {u16 kind, u16 version, u32 header
bytes, u64 payload bytes, u32 compressed bytes, u32, u16 minor, u16 major, u32 arch, u32, u32,
u64 flags}. Payloads are skipped, so that compression does not matter. The version of a piece of
PTX is that of its ISA.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from volta_doctor.facts.elf import NotRead, Readable, Section, read_at

# The executable code; where there is none, that which is still to be linked. Beside executable code
# the relocatable is its mere source, such as that of libcudadevrt, which is there for every card.
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAGIC = b"\x50\xed\x55\xba"
_REGISTERED = ".nvFatBinSegment"  # one pointer for each region, filled in by the loader

_REGION = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_PTX, _SASS = 1, (2, 16)
_NOT_RUN = 8  # code for link-time optimisation, which no driver runs
_SUFFIXES = ((1 << 20, "a"), (1 << 21, "f"))  # code for one chip, or for one family
_LZ4 = 1 << 13  # 1 << 15 is Zstandard
_HIGHEST = 9999
_PIECES = 1 << 18  # in one file; libtorch_cuda.so of 2.10.0 has 3,258
_SECTIONS_READ = 16
_PADDING_BYTES = 1 << 20  # in one section; a linker aligns to 64 KiB at most
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


class Piece(NamedTuple):
    """One entry of a fat binary; its payload takes `size` bytes at `offset`."""

    kind: int
    arch: str
    version: tuple[int, int]
    offset: int
    size: int
    is_lz4: bool


class Survey(NamedTuple):
    """The device code of a file, the newest ISA of its PTX by architecture, its first SASS."""

    code: DeviceCode
    ptx_isa: dict[str, str]
    first_sass: Piece | None


def device_code(file: Readable, found: list[Section]) -> DeviceCode:
    """Return the device code in the given sections of an ELF file."""
    return survey(file, found).code


def survey(file: Readable, found: list[Section]) -> Survey:
    """Return what is to be known of the device code in the given sections; it never raises."""
    sass: dict[str, int] = {}
    ptx: dict[str, int] = {}
    isa: dict[str, tuple[int, int]] = {}
    first, problem, unknown = None, "", set[int]()
    try:
        for seen, piece in enumerate(_pieces(file, found)):
            if seen == _PIECES:
                raise NotRead(f"has more than {_PIECES} pieces of device code")
            if piece.kind in _SASS:
                sass[piece.arch] = sass.get(piece.arch, 0) + 1
                first = first or piece
            elif piece.kind == _PTX:
                ptx[piece.arch] = ptx.get(piece.arch, 0) + 1
                isa[piece.arch] = max(piece.version, isa.get(piece.arch, (0, 0)))
            elif piece.kind != _NOT_RUN:
                unknown.add(piece.kind)
    except NotRead as reason:
        problem = str(reason)
    if unknown and not problem:
        problem = f"has device code of a kind that is not known here ({min(unknown)})"
    code = code_of(sass, ptx, problem)
    return Survey(code, {arch: f"{isa[arch][0]}.{isa[arch][1]}" for arch in code.ptx}, first)


def code_of(sass: dict[str, int], ptx: dict[str, int], problem: str) -> DeviceCode:
    """Return what was counted by architecture, in their order."""
    return DeviceCode(sass=_sorted(sass), ptx=_sorted(ptx), problem=problem)


def number(arch: str) -> int:
    """Return the number in an architecture's name: 90 for 90a."""
    return int(arch.rstrip("af"))


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return {arch: counts[arch] for arch in sorted(counts, key=lambda a: (number(a), a))}


def _pieces(file: Readable, found: list[Section]) -> Iterator[Piece]:
    by_name = ([s for s in found if s.name == name and s.size] for name in SECTIONS)
    sections = next(filter(None, by_name), [])
    if not sections and any(section.name == _REGISTERED and section.size for section in found):
        raise NotRead("registers device code outside of the sections that hold it by custom")
    for section in sections[:_SECTIONS_READ]:
        position, end = section.offset, section.offset + section.size
        padding = _PADDING_BYTES
        for _ in range(_PIECES):
            start = _next_region(file, position, end, padding)
            if start is None:
                break
            padding -= start - position
            _, _, header_bytes, size = _REGION.unpack(read_at(file, start, _REGION.size))
            position = start + header_bytes + size
            if header_bytes < _REGION.size or position > end:
                raise NotRead(f"has a fat binary at {start} that its section does not hold")
            yield from _entries(file, start + header_bytes, position)
        else:
            raise NotRead(f"has more than {_PIECES} fat binaries")


def _next_region(file: Readable, position: int, end: int, padding_left: int) -> int | None:
    """Return where the next region starts, None where only padding is left."""
    while end - position >= _REGION.size:
        if padding_left < 0:
            raise NotRead(f"has nothing but zeros before {position}")
        chunk = read_at(file, position, min(_CHUNK_BYTES, end - position))
        if chunk.startswith(MAGIC):
            return position
        padding = len(chunk) - len(chunk.lstrip(b"\0"))
        if not padding:
            raise NotRead(f"holds something else than fat binaries at {position}")
        position += padding
        padding_left -= padding
    return None


def _entries(file: Readable, position: int, end: int) -> Iterator[Piece]:
    while position + _ENTRY.size <= end:
        entry = _ENTRY.unpack(read_at(file, position, _ENTRY.size))
        kind, _, header_bytes, size, _, _, minor, major, number, _, _, flags = entry
        start = position + header_bytes
        if header_bytes < _ENTRY.size or start + size > end or number > _HIGHEST:
            raise NotRead(f"has device code at {position} that its fat binary does not hold")
        arch = f"{number}{''.join(suffix for bit, suffix in _SUFFIXES if flags & bit)}"
        yield Piece(kind, arch, (major, minor), start, size, bool(flags & _LZ4))
        position = start + size
