"""Files within files, read in place: a stretch of one, or a deflated member of a zip archive.

Nothing is written to disk, and memory is bounded whatever the files declare.
"""

import bisect
import time
import zlib
from operator import attrgetter
from typing import NamedTuple

from volta_doctor.facts.elf import NotRead, Readable, read_at

_PACKED_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18
_MARK_BYTES = 1 << 22
_MARKS = 256  # of some 50 KiB each; the distance between them doubles when they are used up


class TooLate(Exception):  # noqa: N818 - as NotRead, an answer; yet not about this one file
    """The time for the whole target is over; the text completes "it ..."."""


class Deadline:
    """When a look must end."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise TooLate once the time is over."""
        if time.monotonic() > self._end:
            raise TooLate(f"was not read to its end: {self.seconds:g} s were over")


class Window:
    """A stretch of a file, as a file."""

    def __init__(self, file: Readable, offset: int, size: int) -> None:
        self._file, self._offset, self._size = file, offset, size
        self._position = 0

    def seek(self, offset: int, /) -> int:
        """Go to a position counted from the start."""
        self._position = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """Return as many bytes as there are, up to `size`."""
        size = max(0, min(size, self._size - self._position))
        self._file.seek(self._offset + self._position)
        data = self._file.read(size)
        self._position += len(data)
        return data


class _Mark(NamedTuple):
    position: int
    packed: int
    state: "zlib._Decompress"


class Inflated:
    """A deflated stretch of a file, as a file that can be read from anywhere.

    The state of the decompressor is kept every few MiB: an ELF file's table of sections lies at its
    end and leads back to the rest, so that all of it is unpacked twice and not once a look.
    """

    def __init__(
        self, file: Readable, offset: int, packed_size: int, size: int, deadline: Deadline
    ) -> None:
        self._file, self._offset, self._deadline = file, offset, deadline
        self._packed_size, self._size = packed_size, size
        self._marks = [_Mark(0, 0, zlib.decompressobj(-zlib.MAX_WBITS))]
        self._mark_bytes = _MARK_BYTES
        self._position = 0
        self._problem = ""
        self._go_to(self._marks[0])

    def seek(self, offset: int, /) -> int:
        """Go to a position counted from the start."""
        self._position = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """Return as many bytes as there are, up to `size`. Raises NotRead."""
        if self._problem:
            raise NotRead(self._problem)
        pieces: list[bytes] = []
        end = min(self._position + size, self._size)
        while self._position < end:
            before = bisect.bisect_right(self._marks, self._position, key=attrgetter("position"))
            mark = self._marks[before - 1]
            if self._position < self._start or mark.position > self._start + len(self._chunk):
                self._go_to(mark)
            skipped = self._position - self._start
            if piece := self._chunk[skipped : skipped + end - self._position]:
                pieces.append(piece)
                self._position += len(piece)
            elif not self._advance():
                break
        return b"".join(pieces)

    def _go_to(self, mark: _Mark) -> None:
        self._start, self._packed, self._chunk = mark.position, mark.packed, b""
        self._state, self._unused = mark.state.copy(), b""

    def _advance(self) -> bool:
        """Unpack the next chunk; False at the end."""
        self._deadline.check()
        self._start += len(self._chunk)
        self._chunk = b""
        self._mark()
        while not self._chunk and not self._state.eof:
            if not self._unused:
                size = min(_PACKED_BYTES, self._packed_size - self._packed)
                self._unused = read_at(self._file, self._offset + self._packed, size)
                self._packed += size
                if not size:
                    return False
            try:
                self._chunk = self._state.decompress(self._unused, _CHUNK_BYTES)
            except zlib.error as error:
                raise self._broken(f"cannot be unpacked: {error}") from error
            self._unused = self._state.unconsumed_tail
        if self._start + len(self._chunk) > self._size:
            told = f"the {self._size} bytes that its archive declares"
            raise self._broken(f"unpacks to more than {told}")
        return bool(self._chunk)

    def _broken(self, reason: str) -> NotRead:
        """Remember why no more can be unpacked: all that follows would be from anywhere."""
        self._problem = reason
        return NotRead(reason)

    def _mark(self) -> None:
        if self._start < self._mark_bytes * len(self._marks) or self._state.eof:
            return
        packed = self._packed - len(self._unused)
        self._marks.append(_Mark(self._start, packed, self._state.copy()))
        if len(self._marks) == _MARKS:
            self._marks = self._marks[::2]
            self._mark_bytes *= 2
