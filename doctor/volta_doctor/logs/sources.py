"""Where texts come from: files and stdin, plain or compressed, as whole lines in UTF-8."""

import bz2
import codecs
import gzip
import io
import lzma
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

STDIN = "stdin"
_PIECE = 1 << 20
_LONGEST_LINE = 2 << 20  # what is longer is cut into lines of its own
_MAGICS: dict[bytes, Callable[[BinaryIO], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_HEAD = max(map(len, _MAGICS))
_DAMAGED = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)
_BOMS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_START = 1 << 12


class SourceError(OSError):
    """A source that cannot be read; the message names it, what is wrong, and what to do."""


class Source:
    """A source as pieces that end with a line; `problem` says why it ended before its end."""

    def __init__(self, path: str) -> None:
        self.name = STDIN if path == "-" else path
        self.problem = ""
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces. Raises SourceError where nothing can be read."""
        begun = False
        try:
            with _opened(self._path) as file:
                for piece in _whole_lines(file):
                    begun = True
                    yield piece
        except _DAMAGED as error:
            self.problem = f"{self.name}: the compressed file is damaged ({error})"
            if not begun:
                raise SourceError(f"{self.problem}, and nothing of it can be read") from error
        except SourceError:
            raise
        except OSError as error:
            self.problem = f"{self.name}: {error.strerror or error}"
            if isinstance(error, PermissionError):
                self.problem += (
                    f"; pipe it in: sudo cat {shlex.quote(self.name)} | volta-doctor why -"
                )
            if not begun:
                raise SourceError(self.problem) from error


def _opened(path: str) -> BinaryIO:
    if path == "-":
        raw = cast("io.BufferedReader", sys.stdin.buffer)
    elif Path(path).is_dir():
        raise SourceError(f"{path}: a directory; name the files in it, as in {path}/*.log")
    else:
        raw = Path(path).open("rb")  # noqa: SIM115 - the caller closes it
    head = raw.peek(_HEAD)[:_HEAD]
    for magic, unpack in _MAGICS.items():
        if head.startswith(magic):
            return cast("BinaryIO", unpack(raw))
    return raw


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    rest = b""
    for piece in _in_utf8(_pieces(file)):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
        if len(rest) > _LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def _in_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decode UTF-16, as PowerShell writes it; leave out NULs, which a crash leaves in logs."""
    first = next(pieces, b"")
    if encoding := _utf16(first[:_START]):
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        for piece in chain([first], pieces):
            yield decoder.decode(piece).lstrip("\ufeff").encode(errors="replace")
    elif not first.strip(b"\0"):  # no text, and /dev/zero has no end
        yield from chain([first], pieces)
    else:
        for piece in chain([first], pieces):
            yield piece.replace(b"\0", b"") if b"\0" in piece else piece


def _utf16(start: bytes) -> str:
    """Return which UTF-16 it is, by its mark, or by NULs beside nearly all characters."""
    if start[:2] in _BOMS:
        return _BOMS[start[:2]]
    half = len(start) // 2
    for encoding, high, low in (("utf-16-le", 1, 0), ("utf-16-be", 0, 1)):
        if start[high::2].count(0) > half * 0.7 and start[low::2].count(0) < half * 0.1:
            return encoding
    return ""


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield large pieces; of a damaged file also what stands before the damage."""
    piece = bytearray()
    try:
        while more := file.read1(_PIECE):  # type: ignore[attr-defined]  # all of ours have it
            piece += more
            if len(piece) >= _PIECE:
                yield bytes(piece)
                piece.clear()
    except (*_DAMAGED, OSError):
        if piece:
            yield bytes(piece)
        raise
    if piece:
        yield bytes(piece)
