"""Reads a source of any size into a bounded `Text`: all of it, else what is near a known word.

The end of a huge log is kept whole, and of the rest what is near a literal of some pattern.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from volta_doctor.logs.search import Search, Word
from volta_doctor.logs.sources import Source
from volta_doctor.logs.text import Text, decode, number_lines, parse

WHOLE = 2 << 20  # bytes of a text that is looked at whole
_START = 1 << 16
_STRANGE = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x07\x1b") + b"\x7f"
_NO_TEXT = "this is no text; of what is packed, .gz, .xz and .bz2 are read"


def read(path: str, words: Iterable[Word]) -> Text:
    """Read a source. Raises SourceError."""
    source = Source(path)
    rest = iter(source)
    head: list[bytes] = []
    size = 0
    while size <= WHOLE and (piece := next(rest, b"")):
        head.append(piece)
        size += len(piece)
    if _is_binary(b"".join(head[:1])):
        return Text(source.name, [], note=f"{source.name}: {_NO_TEXT}")
    if not size:
        return Text(source.name, [], note=f"{source.name}: it is empty")
    if size <= WHOLE:
        return parse(source.name, b"".join(head))._replace(note=_cut_short(source))
    search = Search(words)
    for piece in chain(_emptied(head), rest):
        search.take(piece)
    kept = search.end()
    lines = [line for number, text in kept for line in number_lines([decode(text)], number)]
    note = (
        f"{source.name}: of {search.last} lines {len(kept)} were looked at: those near a word"
        " that a rule knows, and the last ones"
    )
    return Text(source.name, lines, note="; ".join(filter(None, [note, _cut_short(source)])))


def _cut_short(source: Source) -> str:
    """Say where a source ended before its end."""
    return f"{source.problem}: what could be read was judged" if source.problem else ""


def _is_binary(data: bytes) -> bool:
    """Say whether it is no text: one byte in fifty is a control character that no log has."""
    start = data[:_START]
    return (len(start) - len(start.translate(None, _STRANGE))) * 50 > len(start)


def _emptied(pieces: list[bytes]) -> Iterator[bytes]:
    while pieces:
        yield pieces.pop(0)
