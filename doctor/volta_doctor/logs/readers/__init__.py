"""One module for each kind of text that holds facts; each is imported here by itself.

To add one: a module with a function marked `@reader`. Modules with an underscore before their name
hold what several share.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from volta_doctor.logs.parts import Part
from volta_doctor.logs.text import Text

Read = Callable[[Text], Iterable[Part]]


class Reader(NamedTuple):
    """A reader: it is asked where one of its `hints` (literals) stands in a text.

    Of a huge text only what is near a hint is looked at: so many lines `after` it.
    """

    read: Read
    hints: tuple[str, ...]
    after: int


READERS: list[Reader] = []


def reader(*hints: str, after: int = 40) -> Callable[[Read], Read]:
    """Mark a function that finds facts in a text; it must bear any text."""

    def register(read: Read) -> Read:
        READERS.append(Reader(read, hints, after))
        return read

    return register


def load() -> list[Reader]:
    """Import all readers, and return them."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return READERS


def read(text: Text) -> Iterator[Part]:
    """Yield what the readers find in a text."""
    whole = text.joined().lower()
    for known in load():
        if any(hint.lower() in whole for hint in known.hints):
            yield from known.read(text)
