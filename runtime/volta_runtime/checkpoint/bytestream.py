"""A binary head read piece by piece: numbers, texts, and leaps over what is not wanted."""

import struct
from typing import Any, BinaryIO

_WINDOW = 1 << 18  # bytes that are held at once


class ByteStream:
    """Little-endian numbers and length-prefixed texts of a file, never beyond its end.

    Whatever a length claims, no more memory is taken than what is really there and asked for.
    Methods raise EOFError where the file ends, or `most` bytes do.
    """

    def __init__(self, stream: BinaryIO, size: int, most: int) -> None:
        self._stream = stream
        self._size = size
        self._end = min(size, most)
        self._base = 0  # of the window in the file
        self._data = b""
        self._at = 0  # in the window
        self._fill(min(16, self._end))

    @property
    def position(self) -> int:
        """Bytes from the file's begin to what is read next."""
        return self._base + self._at

    @property
    def start(self) -> bytes:
        """The first bytes of the window that is held."""
        return self._data[:16]

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        self._fill(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, code: str) -> Any:
        """Read one number, by its code of the struct module."""
        return self.numbers(code)[0]

    def numbers(self, codes: str) -> tuple[Any, ...]:
        """Read numbers that follow each other without padding."""
        width = self.width(codes)
        self._fill(width)
        self._at += width
        return struct.unpack_from(f"<{codes}", self._data, self._at - width)

    @staticmethod
    def width(codes: str) -> int:
        """How many bytes such numbers take."""
        return struct.calcsize(f"<{codes}")

    def text(self, most: int) -> str:
        """Read a text behind its u64 length; bytes that are not UTF-8 are replaced.

        Raises ValueError where it is longer than `most` bytes.
        """
        length: int = self.number("Q")
        if length > most:
            self._check(length)
            raise ValueError(f"a text of {length:,} bytes")
        return self.take(length).decode(errors="replace")

    def skip(self, count: int) -> None:
        """Leap over so many bytes."""
        self._check(count)
        self._at += count

    def skip_texts(self, count: int) -> None:
        """Leap over texts."""
        self._check(8 * count)
        length = struct.Struct("<Q").unpack_from
        for _ in range(count):  # 2^18 words and as many merges: worth the plain loop
            if self._at + 8 > len(self._data):
                self._fill(8)
            self._at += 8 + length(self._data, self._at)[0]
        self._check(0)

    def _check(self, count: int) -> None:
        if self.position + count > self._end:
            beyond = "the file ends" if self._end == self._size else f"beyond {self._end:,} bytes"
            raise EOFError(f"{count:,} bytes at {self.position:,}: {beyond}" if count else beyond)

    def _fill(self, count: int) -> None:
        """Have so many bytes in the window from here on."""
        if self._at + count <= len(self._data):
            return
        self._check(count)
        self._base += self._at
        self._stream.seek(self._base)
        self._data = self._stream.read(min(max(_WINDOW, count), self._end - self._base))
        self._at = 0
        if len(self._data) < count:
            raise EOFError("the file ends")  # it became shorter meanwhile
