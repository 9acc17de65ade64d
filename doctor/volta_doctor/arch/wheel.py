"""Reads the members of a wheel or another zip archive in place: nothing is written to disk."""

import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from volta_doctor.arch.streams import Deadline, Inflated, Window
from volta_doctor.facts.elf import NotRead, Readable, read_at

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")

_CONTENTS_BYTES = 1 << 23  # torch 2.10.0 has 1.4 MB for 12,000 members
_ENCRYPTED = 1
_MEMBER_BYTES = 1 << 34
# A member that unpacks to more is taken for a bomb; deflate reaches 1032, fat binaries some tens.
_RATIO, _RATIO_FROM_BYTES = 200, 1 << 24
_LOCAL = struct.Struct("<4s22xHH")


class Member(NamedTuple):
    """One member, as a file of `size` bytes."""

    name: str
    content: Readable
    size: int


class _Bounded:
    """A file that refuses to be read in pieces too large for memory: zipfile trusts its sizes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size > _CONTENTS_BYTES:
            raise zipfile.BadZipFile(f"its table of contents takes {size} bytes")
        return self._file.read(_CONTENTS_BYTES if size < 0 else size)


def members(
    file: BinaryIO, deadline: Deadline, wanted: Callable[[str], bool], unread: Callable[[str], None]
) -> Iterator[Member]:
    """Yield the members with a wanted name; `unread` is told of those that cannot be had.

    Raises NotRead where the file is no zip archive that makes sense.
    """
    try:
        listed = zipfile.ZipFile(_Bounded(file)).infolist()
    except (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError) as error:
        raise NotRead(f"has no table of contents that makes sense: {error}") from error
    for info in listed:
        deadline.check()
        if info.is_dir() or not wanted(info.filename):
            continue
        try:
            yield Member(info.filename, _open(file, info, deadline), info.file_size)
        except NotRead as reason:
            unread(f"{info.filename}: it {reason}")


def _open(file: BinaryIO, info: zipfile.ZipInfo, deadline: Deadline) -> Readable:
    packed, size = info.compress_size, info.file_size
    if info.flag_bits & _ENCRYPTED:
        raise NotRead("is encrypted")
    if size > _MEMBER_BYTES:
        raise NotRead(f"declares {size} bytes, more than are read of one member")
    if size > _RATIO_FROM_BYTES and size > packed * _RATIO:
        raise NotRead(f"declares {size} bytes of {packed}: a bomb, not unpacked")
    header, name_bytes, extra_bytes = _LOCAL.unpack(read_at(file, info.header_offset, _LOCAL.size))
    if header != MAGIC[0]:
        raise NotRead(f"does not lie where the table of contents says ({info.header_offset})")
    start = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
    if info.compress_type == zipfile.ZIP_STORED:
        if packed != size:
            raise NotRead(f"declares {size} bytes and holds {packed}")
        return Window(file, start, size)
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return Inflated(file, start, packed, size, deadline)
    raise NotRead(f"is packed by method {info.compress_type}, which is not read")
