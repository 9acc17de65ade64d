"""One request's way through the engine: checked, submitted, followed, measured."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from volta_runtime.engine import Engine, Output
from volta_runtime.errors import QueueFullError, RequestError
from volta_runtime.server.compat import shown
from volta_runtime.server.metrics import Metrics
from volta_runtime.server.protocol import ChatRequest, CompletionRequest, GenerationRequest

log = logging.getLogger(__name__)

# OpenAI's default for completions; a chat answer may fill the rest of the context, as in vLLM.
_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Job:
    """A checked request: the prompt's tokens and how many may follow."""

    prompt: list[int]
    max_tokens: int


class Follow:
    """Measures one request, from its arrival to its end."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self.outcome = "error"
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._arrived = self._previous = time.monotonic()
        self._count = 0

    def add(self, output: Output) -> None:
        """One more token."""
        now = time.monotonic()
        if self._count == 0:
            self._metrics.prompt_tokens.inc(self._prompt_tokens)
            self._metrics.time_to_first_token.observe(now - self._arrived)
        else:
            self._metrics.time_per_token.observe(now - self._previous)
        self._metrics.generation_tokens.inc()
        self._previous, self._count = now, output.completion_tokens
        if output.finish_reason is not None:
            self.outcome = output.finish_reason

    def end(self) -> None:
        """Record how it ended."""
        seconds = time.monotonic() - self._arrived
        self._metrics.requests.labels(self.outcome).inc()
        if self.outcome in ("stop", "length"):
            self._metrics.request_latency.observe(seconds)
        log.info(
            "%s: %d prompt tokens, %d generated in %.2f s",
            self.outcome,
            self._prompt_tokens,
            self._count,
            seconds,
        )


class Service:
    """The engine as the HTTP handlers see it."""

    def __init__(self, engine: Engine, names: tuple[str, ...]) -> None:
        self.engine = engine
        self.names = names
        self.metrics = Metrics(engine)
        # The tokenizer leaves Python's lock, so a long prompt stops neither streams nor health.
        self._tokenizing = ThreadPoolExecutor(2, "tokenize")

    def check_name(self, name: str) -> None:
        """Raises RequestError for a model that is not served here."""
        if name not in self.names:
            raise RequestError(
                f"model: {shown(name)} is not served here; served: {', '.join(self.names)}",
                "model",
                "model_not_found",
            )

    async def prepare(self, request: GenerationRequest) -> Job:
        """Tokenise and check what only the model knows. Raises RequestError."""
        if request.model is not None:
            self.check_name(request.model)
        loop = asyncio.get_running_loop()
        prompt = await loop.run_in_executor(self._tokenizing, self._tokens, request)
        return Job(prompt, self._max_tokens(request, len(prompt)))

    async def generate(self, request: GenerationRequest, job: Job) -> AsyncGenerator[Output, None]:
        """The request's outputs. Leaving early, as when a client goes away, frees its slot.

        Raises VoltaError when the engine refuses or fails.
        """
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output] = asyncio.Queue()

        def sink(output: Output) -> None:
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(outputs.put_nowait, output)

        follow = Follow(self.metrics, len(job.prompt))
        generation = None
        try:
            generation = self.engine.submit(job.prompt, request.sampling(job.max_tokens), sink)
            while True:
                output = await outputs.get()
                if output.error is not None:
                    raise output.error
                follow.add(output)
                yield output
                if output.last:
                    return
        except QueueFullError:
            follow.outcome = "refused"
            raise
        except (asyncio.CancelledError, GeneratorExit):
            follow.outcome = "cancelled"
            raise
        finally:
            if generation is not None:
                self.engine.cancel(generation)
            follow.end()

    def _tokens(self, request: GenerationRequest) -> list[int]:
        tokenizer = self.engine.tokenizer
        if isinstance(request, ChatRequest):
            if tokenizer.chat_template is None:
                raise RequestError("messages: this model has no chat template; use /v1/completions")
            text = tokenizer.chat_template.render([m.for_template() for m in request.messages])
            self._refuse_hopeless(text, "messages")
            return tokenizer.encode(text, add_special_tokens=False)
        assert isinstance(request, CompletionRequest)
        prompt = request.single_prompt
        if isinstance(prompt, str):
            self._refuse_hopeless(prompt, "prompt")
            return tokenizer.encode(prompt)
        largest = max(prompt)
        if largest >= self.engine.vocab_size:
            raise RequestError(
                f"prompt: token id {largest} is beyond the vocabulary, whose last is "
                f"{self.engine.vocab_size - 1}",
                "prompt",
                "invalid_value",
            )
        return prompt

    def _refuse_hopeless(self, text: str, field: str) -> None:
        """Refuse a text that cannot fit: to tokenise 5 MB takes seconds, and 300 MiB for good."""
        least = len(text) // self.engine.tokenizer.longest_token
        if least > self.engine.max_len:
            raise RequestError(
                f"{field}: {len(text)} characters are at least {least} tokens; this model's "
                f"context is {self.engine.max_len} tokens. Shorten the prompt",
                field,
                "context_length_exceeded",
            )

    def _max_tokens(self, request: GenerationRequest, prompt: int) -> int:
        """How many tokens may follow a prompt of so many."""
        is_chat = isinstance(request, ChatRequest)
        field = "messages" if is_chat else "prompt"
        if prompt == 0:
            raise RequestError(f"{field}: holds no tokens", field, "invalid_value")
        limit = self.engine.max_len
        asked = request.max_tokens
        if isinstance(request, ChatRequest):
            asked = request.max_completion_tokens or asked
        if asked is None:
            asked = max(limit - prompt, 1) if is_chat else _COMPLETION_TOKENS
        excess = prompt + asked - limit
        if excess > 0:
            raise RequestError(
                f"{field}: the prompt has {prompt} tokens and up to {asked} more are asked for, "
                f"{prompt + asked} in all; this model's context is {limit} tokens, {excess} fewer. "
                "Shorten the prompt or lower max_tokens",
                field,
                "context_length_exceeded",
            )
        return asked
