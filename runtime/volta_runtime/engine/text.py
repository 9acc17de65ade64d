"""Turning tokens into text as they come: no broken characters, no partial stop strings."""

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import DecodeStream


class TextStream:
    """The text of one growing sequence of tokens."""

    def __init__(self, tokenizer: RawTokenizer, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; returns the text that is now certain.

        A character whose bytes are incomplete is kept back, and so is an end that may become a
        stop string. When a stop string is complete, `stopped` is set and the text before it
        returned.
        """
        self._held += self._decoder.step(self._tokenizer, token) or ""
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._release(min(found))
        return self._release(len(self._held) - self._partial())

    def flush(self) -> str:
        """The text kept back for a stop string that did not come; incomplete bytes are dropped."""
        return self._release(len(self._held))

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text

    def _partial(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0
