"""Lines for a terminal of some width: prose by words, commands as a shell reads them."""

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from rich.console import Console
from rich.text import Text

from volta_doctor.words import printable

_NARROWEST = 20  # columns; nothing can be read below that


def prose(
    text: str, width: int, indent: int = 0, hanging: int | None = None, lines: int | None = None
) -> Iterator[Text]:
    """Wrap a text; with a `hanging` indent that is for all lines but the first.

    Of a text that is longer than `lines` the rest is left out.
    """
    for line in textwrap.wrap(
        text,
        width,
        initial_indent=" " * (0 if hanging is None else indent),
        subsequent_indent=" " * (indent if hanging is None else hanging),
        break_on_hyphens=False,
        max_lines=lines,
        placeholder=" ...",
    ):
        yield Text(line.rstrip())


def command(words: Iterable[str], width: int, label: str, further: str) -> Iterator[Text]:
    """Wrap a command: a backslash at the end of each line but the last.

    The first line begins with `label`, the others with `further`; a word alone is never broken.
    """
    line = label
    for word in words:
        if len(line) + 1 + len(word) + 2 > width and line not in (label, further):
            yield Text(f"{line} \\")
            line = further
        line = f"{line} {word}"
    yield Text(line)


def printed(file: TextIO, lines: Callable[[int], Iterable[Text]]) -> str:
    """Return the lines for the width of `file`, in its colours and without control characters."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    console.width = max(console.width, _NARROWEST)  # of none, nothing would be printed
    with console.capture() as capture:
        for line in lines(console.width):
            line.plain = printable(line.plain)
            console.print(line, soft_wrap=True)
    return capture.get().rstrip("\n")
