"""Shapes of stored tensors as text, "[N, K/G]": read both ways, and printed in docs/formats.md.

N are output features and K input features; G weights along K share a scale; R and C are rows and
columns of a block, b bits of a code. A dimension is a product, over a product: K*b/32. It is whole,
unless ceiling brackets round it up: ⌈N/R⌉; what is rounded so may be a factor: ⌈K/8⌉*8/G.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

Shape = tuple[int, ...]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Term:
    """One dimension: what stands above and below the line, numbers folded and names apart.

    factor: one more above the line, which is rounded up by itself.
    """

    text: str
    rounds_up: bool
    above: int
    below: int
    names_above: tuple[str, ...]
    names_below: tuple[str, ...]
    factor: "Term | None" = None

    @property
    def names(self) -> frozenset[str]:
        """All names that stand in it."""
        inner = self.factor.names if self.factor else ()
        return frozenset((*self.names_above, *self.names_below, *inner))

    def value(self, sizes: Sizes) -> int | None:
        """Its size; None where a name is unknown or the division leaves a rest."""
        if not self.names <= sizes.keys():
            return None
        above, below = self._known(sizes)
        if self.rounds_up:
            return -(-above // below)
        return above // below if above % below == 0 else None

    def solve(self, size: int, sizes: Sizes) -> dict[str, int]:
        """The one unknown name with its value, of a term that rounds up the largest that fits.

        Empty where nothing or several are unknown, or no whole number fits.
        """
        unknown = [name for name in self.names if name not in sizes]
        if len(unknown) != 1 or size < 1 or (self.factor and unknown[0] in self.factor.names):
            return {}
        above, below = self._known(sizes)
        if unknown[0] in self.names_above:
            value, rest = divmod(size * below, above)
        else:
            value, rest = divmod(above, size * below)
        return {} if rest or value < 1 else {unknown[0]: value}

    def _known(self, sizes: Sizes) -> tuple[int, int]:
        above = self.above * math.prod(sizes.get(name, 1) for name in self.names_above)
        above *= (self.factor.value(sizes) or 1) if self.factor else 1
        return above, self.below * math.prod(sizes.get(name, 1) for name in self.names_below)


@dataclass(frozen=True)
class Template:
    """A shape with names in it."""

    terms: tuple[Term, ...]

    @property
    def names(self) -> frozenset[str]:
        """All names that stand in it."""
        return frozenset(name for term in self.terms for name in term.names)

    def shape(self, sizes: Sizes) -> tuple[int | None, ...]:
        """The sizes by dimension; None for one that cannot be."""
        return tuple(term.value(sizes) for term in self.terms)

    def solve(self, shape: Shape, sizes: Sizes) -> dict[str, int] | None:
        """The names that this shape tells; None where it contradicts those that are known."""
        if len(shape) != len(self.terms):
            return None
        found: dict[str, int] = {}
        for term, size in zip(self.terms, shape, strict=True):
            found |= term.solve(size, {**sizes, **found})
        known = {**sizes, **found}
        for term, size in zip(self.terms, shape, strict=True):
            if term.names <= known.keys() and term.value(known) != size:
                return None
        return found

    def text(self, sizes: Sizes) -> str:
        """The shape in numbers, with the terms of what is unknown or does not divide."""
        values = zip(self.terms, self.shape(sizes), strict=True)
        return "[" + ", ".join(term.text if v is None else str(v) for term, v in values) + "]"


@cache
def template(text: str) -> Template:
    """Parse a shape."""
    inside = text.removeprefix("[").removesuffix("]")
    return Template(tuple(_term(part.strip()) for part in inside.split(",") if part.strip()))


def _term(text: str) -> Term:
    rounded, _, rest = text.rpartition("⌉*")
    factor = _term(f"{rounded}⌉") if rounded else None
    above, _, below = rest.strip("⌈⌉").partition("/")
    (above_number, above_names), (below_number, below_names) = _product(above), _product(below)
    up = rest.startswith("⌈")
    return Term(text, up, above_number, below_number, above_names, below_names, factor)


def _product(text: str) -> tuple[int, tuple[str, ...]]:
    factors = re.findall(r"[A-Za-z]+|\d+", text)
    names = tuple(factor for factor in factors if factor.isalpha())
    return math.prod(int(factor) for factor in factors if factor.isdigit()), names
