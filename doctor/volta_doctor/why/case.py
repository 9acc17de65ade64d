"""A case: all texts that belong together, and what was read from them."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import groupby, islice
from typing import NamedTuple

from volta_doctor.catalog import compat
from volta_doctor.catalog.why import Message, Symptom
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import value
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Evidence
from volta_doctor.logs.parts import Config, Listed, Part, Seen, merged
from volta_doctor.logs.patterns import Pattern
from volta_doctor.logs.text import Joined, Line, Squeezed, Text
from volta_doctor.profile import Profile
from volta_doctor.why import gpus, sieve

_PROFILE = "text"
# Series without a Volta card, but for those that compat.yaml lists by name.
_OTHER_SERIES = re.compile(r"geforce|\b[gr]tx\b|quadro|jetson|radeon|instinct", re.IGNORECASE)
_SQUEEZED_LINES = 6_000  # of a text that is also looked at without its line ends


class Hit(NamedTuple):
    """A message or a symptom that was found: its named groups, its lines, and how many there are.

    `order` is where in the case it stands first.
    """

    groups: dict[str, str]
    evidence: list[Evidence]
    times: int
    order: tuple[int, int]


class Said(NamedTuple):
    """A message of a diagnosis, found."""

    check_id: str
    message: Message
    hit: Hit


class Case:
    """What is known: texts, facts from dumps, messages, symptoms."""

    def __init__(self, texts: list[Text], parts: Iterable[Part], facts: Facts | None = None):
        self.texts = sorted(texts, key=lambda text: text.is_source)
        self.parts = list(parts)
        self.facts = merged([*([Part(facts)] if facts else []), *self.parts])
        self.facts = gpus.completed(self.facts, self.card != "other")
        self._lines: dict[tuple[str | re.Pattern[str], int], list[Evidence]] = {}
        self.said: list[Said] = []
        self.symptoms: dict[str, tuple[Symptom, Hit]] = {}

    @cached_property
    def printed(self) -> list[Text]:
        """The texts in which a message is one, and no string of a program's source."""
        return [text for text in self.texts if not text.is_source]

    @cached_property
    def joined(self) -> list[Joined]:
        """The texts as bytes."""
        return [Joined(text) for text in self.texts]

    @cached_property
    def squeezed(self) -> list[tuple[Text, Squeezed]]:
        """The short texts without blanks and line ends."""
        short = [text for text in self.printed if len(text.lines) <= _SQUEEZED_LINES]
        return [(text, Squeezed(text)) for text in short]

    @cached_property
    def cards(self) -> list[str]:
        """The names of the GPUs that the texts show, or their capability."""
        nvml = self.facts.nvml.data
        named = [value(gpu.name) or "" for gpu in nvml.gpus] if nvml else []
        told = [card for part in self.parts for card in part.cards]
        return list(dict.fromkeys(filter(None, [*named, *told])))

    @cached_property
    def capabilities(self) -> set[str]:
        """The compute capabilities of the cards, as far as they are known."""
        nvml = self.facts.nvml.data
        found = {value(gpu.compute_capability) for gpu in nvml.gpus} if nvml else set()
        found |= {gpus.capability_of(card) for card in self.cards}
        return {capability for capability in found if capability}

    @property
    def card(self) -> str:
        """`volta`, `other` where only other cards are named, `unknown` where none is."""
        if compat().volta.compute_capability in self.capabilities:
            return "volta"
        is_other = self.capabilities or any(map(_OTHER_SERIES.search, self.cards))
        return "other" if is_other else "unknown"

    @property
    def profile(self) -> Profile:
        """As which host the facts are judged: as one with Volta cards, unless others are named."""
        figures = compat().gpus.capabilities.values()
        names = [card for card in self.cards if card not in figures]
        names = [name for name in names if not any(name in n and name != n for n in names)]
        named = ", ".join(names) or f"a card of capability {', '.join(self.cards)}"
        if self.card == "other":
            reason = f"the text names {named}: no Volta card, and the rules are for Volta"
            return Profile(name=_PROFILE, gpu="nvidia", reason=reason, cards=self.cards)
        reason = f"the text names {named}"
        if self.card == "unknown":
            reason = "the text names no card, so it is judged as that of a V100"
        return Profile(name=_PROFILE, gpu="volta", reason=reason, cards=self.cards)

    def names(self, name: str) -> set[str]:
        """Return what readers may call the subject of a finding; an empty one is the host."""
        nvml = self.facts.nvml.data
        return gpus.names(nvml.gpus if nvml else [], name)

    @cached_property
    def configs(self) -> list[Config]:
        """The JSON files of checkpoints."""
        return [config for part in self.parts for config in part.configs]

    @cached_property
    def listed(self) -> list[Listed]:
        """The files of listings."""
        return [file for part in self.parts for file in part.listed]

    @cached_property
    def seen(self) -> list[Seen]:
        """Where the values of facts stand."""
        return [seen for part in self.parts for seen in part.seen]

    @property
    def flags(self) -> Flags:
        """The flags of the first server that the texts show; none set where they show none."""
        servers = self.facts.serve.data.servers if self.facts.serve.data else []
        return servers[0].flags if servers else Flags()

    def found(self, check_id: str) -> bool:
        """Say whether a message of a diagnosis was found."""
        return any(said.check_id == check_id for said in self.said)

    def shows(self, *symptoms: str) -> bool:
        """Say whether one of these symptoms was found."""
        return any(symptom in self.symptoms for symptom in symptoms)

    def each_line(self) -> Iterator[tuple[Text, Line]]:
        """Yield all lines in order, with their text: for what several lines in a row tell."""
        for text in self.printed:
            for line in text.lines:
                yield text, line

    def matching(
        self, regex: re.Pattern[str], sources: bool = False
    ) -> Iterator[tuple[re.Match[str], Evidence]]:
        """Yield all matches of a regex within lines, in order.

        What is set, and not what is said, may also stand in `sources` of programs.
        """
        for joined in self.joined:
            text = joined.text
            if text.is_source and not sources:
                continue
            for line in sieve.lines(joined, regex):
                for match in regex.finditer(line.text):
                    yield match, text.evidence(line)

    def lines(self, pattern: str | re.Pattern[str], most: int = 2) -> list[Evidence]:
        """Return the first lines in which a pattern is found.

        A `str` is one of the tables' kind: it fits with any blanks, and in broken lines too. A
        regex is for what people say, and must fit a line as it stands.
        """
        key = pattern, most
        if key not in self._lines:
            if isinstance(pattern, str):
                hit = find(self, _compiled(pattern), most)
                self._lines[key] = hit.evidence if hit else []
            else:
                found = (evidence for _, evidence in self.matching(pattern))
                self._lines[key] = list(islice((seen for seen, _ in groupby(found)), most))
        return self._lines[key]

    def groups(self, pattern: str) -> dict[str, str] | None:
        """Return the named groups of a pattern's first match; None where it matches nowhere."""
        hit = find(self, _compiled(pattern), 1)
        return hit.groups if hit else None


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Pattern:
    return Pattern(source)


def find(case: Case, pattern: Pattern, most: int = 3) -> Hit | None:
    """Look for the first lines with a pattern, else for one in the texts without line ends."""
    found = (
        (groups, number, text.text, text.line(at))
        for number, text in enumerate(case.joined)
        if not text.text.is_source
        for groups, at in pattern.lines(text.data)
    )
    first = list(islice(found, most))
    if not first:
        return find_broken(case, pattern)
    groups, number, _, line = first[0]
    seen = [text.evidence(line) for _, _, text, line in first]
    return Hit(groups, seen, len(first), (number, line.number))


def find_broken(case: Case, pattern: Pattern) -> Hit | None:
    """Look for a pattern across broken lines and stray blanks."""
    if pattern.whole_lines:
        return None
    for number, (text, squeezed) in enumerate(case.squeezed):
        match = pattern.squeezed(squeezed.data)
        if match:
            groups, start, end = match
            lines = squeezed.lines(start, end)
            if lines:
                return Hit(
                    groups, [text.evidence(n) for n in lines[:6]], 1, (number, lines[0].number)
                )
    return None
