"""Which sequences run in the next step, and with how many tokens."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from volta_runtime.engine.params import SamplingParams
from volta_runtime.engine.sampling import Sampler
from volta_runtime.engine.text import TextStream
from volta_runtime.layers import KVCache, Segment, SequenceCache


@dataclass(frozen=True)
class Output:
    """What a step adds to a request: text, and at the end the reason or the error.

    finish_reason: "stop" (end token or stop string), "length" (max_tokens), or None.
    completion_tokens: generated so far, an end token included.
    """

    text: str = ""
    completion_tokens: int = 0
    finish_reason: str | None = None
    error: Exception | None = None

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


@dataclass(eq=False)
class Generation:
    """One request inside the engine. `sink` gets its outputs, on the engine's thread."""

    prompt: list[int]
    params: SamplingParams
    sampler: Sampler
    text: TextStream
    sink: Callable[[Output], None]
    output: list[int] = field(default_factory=list)
    cache: SequenceCache | None = None
    cancelled: bool = False


@dataclass(frozen=True)
class Piece:
    """A running sequence's part of one step."""

    generation: Generation
    cache: SequenceCache
    tokens: list[int]

    @classmethod
    def of(cls, generation: Generation) -> "Piece":
        """All that the model has not seen yet: of the prompt, or the last generated token."""
        assert generation.cache is not None, "only running sequences are planned"
        done = generation.cache.length
        prompt = generation.prompt
        tokens = prompt[done:] if done < len(prompt) else generation.output[-1:]
        return cls(generation, generation.cache, tokens)

    def cut(self, budget: int) -> "Piece":
        """The first `budget` tokens of it."""
        return replace(self, tokens=self.tokens[:budget])

    @property
    def segment(self) -> Segment:
        """What the model needs to know of it."""
        return Segment(self.cache, len(self.tokens))


class Scheduler:
    """First come, first served into a fixed number of slots; then all advance together.

    Every running sequence that generates gets one token in every step. Beside them, up to
    `prompt_tokens` of prompts are read, which take turns: so a long prompt delays neither the
    others' tokens nor a short prompt for long.
    """

    def __init__(self, cache: KVCache, prompt_tokens: int) -> None:
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self._cache = cache
        self._prompt_tokens = prompt_tokens

    def plan(self) -> list[Piece]:
        """Admit what fits and return the next step, with at most one piece per sequence."""
        while self.waiting and self._cache.free_slots:
            generation = self.waiting.popleft()
            generation.cache = self._cache.acquire()
            self.running.append(generation)
        pieces = [Piece.of(generation) for generation in self.running]
        step = [piece for piece in pieces if len(piece.tokens) == 1]
        budget = self._prompt_tokens
        for piece in pieces:
            if len(piece.tokens) > 1 and budget > 0:
                step.append(piece.cut(budget))
                budget -= len(step[-1].tokens)
                self.running.remove(piece.generation)
                self.running.append(piece.generation)
        return step

    def remove(self, generation: Generation) -> None:
        """Forget a finished or cancelled request and free its slot at once."""
        if generation.cache is not None:
            self.running.remove(generation)
            self._cache.release(generation.cache)
        else:
            self.waiting.remove(generation)

    def clear(self) -> None:
        """Forget everything."""
        self.waiting.clear()
        for generation in list(self.running):
            self.remove(generation)
