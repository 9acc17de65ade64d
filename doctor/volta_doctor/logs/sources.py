"""Where texts come from: files and stdin, plain or compressed, as pieces of whole lines."""

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
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
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            self.problem = f"{self.name}: the compressed file is damaged ({error})"
            if not begun:
                raise SourceError(self.problem) from error
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(f"{self.name}: {error.strerror or error}") from error


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
    while piece := file.read(_PIECE):
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
