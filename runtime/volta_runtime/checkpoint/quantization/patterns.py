"""Patterns of a config over the names of modules: hostile ones end in a fault, not in a hang."""

import re
import time
from collections.abc import Callable, Mapping, Sequence

from volta_runtime.checkpoint.fused import FUSED
from volta_runtime.checkpoint.quantization.names import WRAPPERS, Spellings, plain

MOST = 20_000  # patterns; the longest list seen in a published checkpoint has some 300
SECONDS = 2.0  # for all names together; 300 patterns over 20,000 names take 0.03 s
_CHUNK = 500  # patterns that are compiled into one

# Whether a pattern fits a name; TimeoutError where that takes longer than so many seconds.
Matcher = Callable[[str, float], bool]

_PLACE = re.compile(r" at position \d+.*")  # in the expression as it was compiled
_DOT = r"(?:\\\.|\[\.\]|\.)"
_WRAPPED = re.compile(
    r"\^?(?:" + "|".join(re.escape(wrapper).replace(r"\.", _DOT) for wrapper in WRAPPERS) + ")"
)


class Patterns:
    """Regular expressions, each matched from the start of a name.

    RE2 takes time that grows with the name alone. What it does not know (looking around, back
    references) goes to the regex module, which stops when its time is over.

    written: by expression how it stands in the config. faults: the patterns that cannot be used, as
    they stand there, each with the reason.
    """

    def __init__(self, written: Mapping[str, str]) -> None:
        sources = list(written)
        self._written = dict(written)
        self.faults: list[tuple[str, str]] = []
        self._left = SECONDS
        if len(sources) > MOST:
            self.faults.append(
                (written[sources[MOST]], f"one of {len(sources)} patterns, over {MOST}")
            )
            sources = []
        self._inner = any("language_model" in _WRAPPED.sub("", source) for source in sources)
        self._matchers = self._chunks(sources)
        # The name of a joined layer is tried on patterns that have it in full: "*mlp.gate*", which
        # means a router, would fit "mlp.gate_up_proj".
        self._joined = self._chunks([s for s in sources if any(whole in s for whole in FUSED)])

    def match(self, spelled: Spellings) -> bool:
        """Whether any pattern fits a module's name, as a config may spell it."""
        if not self._matchers or self._left <= 0:
            return False
        started = time.perf_counter()
        names = list(spelled.names)
        if self._inner:
            names += [f"{wrapper}{plain(names[0])}" for wrapper in WRAPPERS[1:3]]
        try:
            return any(match(name, self._left) for name in names for match in self._matchers) or (
                bool(spelled.whole) and any(m(spelled.whole, self._left) for m in self._joined)
            )
        except TimeoutError:
            self._left = 0
            return False
        finally:
            self._left -= time.perf_counter() - started
            if self._left <= 0:
                self.faults.append(("", f"the patterns take longer than {SECONDS:g} s"))

    def _chunks(self, sources: Sequence[str]) -> list[Matcher]:
        # A pattern that names a wrapper holds for the name without one too.
        bare = {source: s for s in sources if (source := _WRAPPED.sub("", s)) != s}
        self._written |= {source: self._written[s] for source, s in bare.items()}
        both = [*sources, *bare]
        return [
            matcher
            for start in range(0, len(both), _CHUNK)
            for matcher in self._compiled(both[start : start + _CHUNK])
        ]

    def _compiled(
        self, sources: Sequence[str], compiled: Callable[[str], Matcher] | None = None
    ) -> list[Matcher]:
        compiled = compiled or _linear
        try:
            return [compiled("|".join(f"(?:{source})" for source in sources))]
        except ImportError:  # google-re2 has no wheels for POWER
            return self._compiled(sources, _timed)
        except ValueError as error:
            if len(sources) > 1:
                half = len(sources) // 2
                parts = sources[:half], sources[half:]
                return [match for part in parts for match in self._compiled(part, compiled)]
            if compiled is _linear:
                return self._compiled(sources, _timed)
            fault = (self._written[sources[0]], str(error))
            if fault[0] not in [written for written, _ in self.faults]:
                self.faults.append(fault)
            return []


def _linear(source: str) -> Matcher:
    """A pattern for RE2. Raises ValueError for one that it does not take."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(source.encode(errors="replace"), options)
    except re2.error as error:
        raise ValueError(_said(error)) from None
    return lambda name, _: pattern.match(name.encode(errors="replace")) is not None


def _timed(source: str) -> Matcher:
    """Any other pattern. Raises ValueError for what is none."""
    import regex

    try:
        pattern = regex.compile(source)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(_said(error)) from None
    return lambda name, seconds: pattern.match(name, timeout=seconds) is not None


def _said(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    words = text.decode(errors="replace") if isinstance(text, bytes) else str(error)
    return _PLACE.sub("", words)
