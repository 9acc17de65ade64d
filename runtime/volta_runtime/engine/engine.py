"""The engine: one thread that owns the model."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from volta_runtime.engine.params import SamplingParams
from volta_runtime.engine.sampling import Sampler
from volta_runtime.engine.scheduler import Generation, Output, Scheduler
from volta_runtime.engine.tokenizer import Tokenizer
from volta_runtime.errors import EngineDeadError, ModelError, QueueFullError, VoltaError
from volta_runtime.models import Model

log = logging.getLogger(__name__)

_NOT_FINITE = (
    "the model computed an infinite or undefined logit, so its answer would be noise; "
    "activations have left float16's range, or the checkpoint is damaged (volta-serve verify)"
)


@dataclass(frozen=True)
class EngineConfig:
    """max_num_seqs: sequences served together. max_waiting: requests that may queue behind them.

    prompt_tokens_per_step: prompts are read in pieces of this size; a running stream waits for one
    such piece at a time.
    """

    max_num_seqs: int = 4
    max_waiting: int = 64
    prompt_tokens_per_step: int = 64
    seed: int | None = None


class Engine:
    """Serves requests until stopped. All methods may be called from any thread.

    A failure of the model ends it: `failure` is set, every request gets an error, and only a new
    process can serve again.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, config: EngineConfig) -> None:
        if tokenizer.max_id >= model.vocab_size:
            raise ModelError(
                f"the tokenizer has ids up to {tokenizer.max_id}, but the model's vocab_size is "
                f"{model.vocab_size}; tokenizer.json and config.json are not from the same model"
            )
        self.tokenizer = tokenizer
        self.max_len = model.max_len
        self.vocab_size = model.vocab_size
        self.failure: Exception | None = None
        self._model = model
        self._config = config
        self._seeds = random.Random(config.seed)  # noqa: S311 - sampling, not secrets
        self._scheduler = Scheduler(
            model.make_cache(config.max_num_seqs), config.prompt_tokens_per_step
        )
        self._changed = threading.Condition()
        self._submitted: list[Generation] = []
        self._stopping = False
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are being served."""
        return self._thread.is_alive() and self.failure is None and not self._stopping

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._scheduler.waiting) + len(self._submitted)

    @property
    def step_s(self) -> float:
        """For how many seconds the step at hand has run; 0 between steps and without work."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def submit(
        self, prompt: list[int], params: SamplingParams, sink: Callable[[Output], None]
    ) -> Generation:
        """Queue a request; `sink` then gets its outputs on the engine's thread, the last one once.

        `prompt` holds 1 to max_len − max_tokens ids. Raises QueueFullError or EngineDeadError.
        """
        with self._changed:
            if not self.alive:
                raise EngineDeadError(f"the engine has stopped: {self.failure or 'shutting down'}")
            if (
                self.waiting >= self._config.max_waiting
                and self.running >= self._config.max_num_seqs
            ):
                raise QueueFullError(
                    f"{self.running} requests are running and {self.waiting} waiting, which is "
                    "this server's limit; try again later"
                )
            seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
            generation = Generation(
                prompt,
                params,
                Sampler(params, seed, prompt, self.vocab_size, self._model.device),
                self.tokenizer.stream(params.stop),
                sink,
            )
            self._submitted.append(generation)
            self._changed.notify()
        return generation

    def cancel(self, generation: Generation) -> None:
        """Stop a request; its slot is free before the next step and its sink gets nothing more."""
        with self._changed:
            generation.cancelled = True
            self._changed.notify()

    def abort(self) -> None:
        """Ask the thread to end after its step; requests still running get an error."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def stop(self) -> None:
        """abort(), and return when the thread has ended."""
        self.abort()
        self._thread.join()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._take_requests():
                    self._step_began = time.monotonic()
                    self._step()
                    self._step_began = None
            self._fail_all(EngineDeadError("the server is shutting down"))
        except Exception as error:
            log.exception("the engine has failed and will serve no more requests")
            with self._changed:
                self.failure = error
            self._fail_all(EngineDeadError(f"the engine has failed: {error}"))

    def _take_requests(self) -> bool:
        """Wait for work and apply submissions and cancellations; False when asked to stop."""
        scheduler = self._scheduler
        with self._changed:
            while not (self._stopping or self._submitted or scheduler.running or scheduler.waiting):
                self._changed.wait()
            scheduler.waiting.extend(self._submitted)
            self._submitted.clear()
            for generation in [*scheduler.waiting, *scheduler.running]:
                if generation.cancelled:
                    scheduler.remove(generation)
            return not self._stopping

    def _step(self) -> None:
        step = self._scheduler.plan()
        if not step:
            return
        tokens = torch.tensor([token for piece in step for token in piece.tokens])
        logits = self._model.forward(
            tokens.to(self._model.device), [piece.segment for piece in step]
        )
        tops, likeliest = logits.max(-1)
        rows = zip(step, logits, tops.isfinite().tolist(), likeliest.tolist(), strict=True)
        for piece, row, finite, token in rows:
            generation = piece.generation
            if piece.cache.length < len(generation.prompt):
                continue
            if not finite:
                self._finish(generation, Output(error=VoltaError(_NOT_FINITE)))
                continue
            try:
                self._append(
                    generation, token if generation.params.greedy else generation.sampler(row)
                )
            except Exception as error:  # one request's trouble ends no other's
                log.exception("a request has failed")
                self._finish(generation, Output(error=VoltaError(f"internal error: {error!r}")))

    def _append(self, generation: Generation, token: int) -> None:
        """Add a generated token and report it."""
        params, text = generation.params, generation.text
        generation.output.append(token)
        count = len(generation.output)
        ended = token in params.stop_token_ids or (
            not params.ignore_eos and token in self.tokenizer.eos_token_ids
        )
        new = "" if ended else text.push(token)
        if ended or text.stopped:
            reason = "stop"
        elif count >= params.max_tokens:
            reason = "length"
        else:
            _emit(generation, Output(new, count))
            return
        if not text.stopped:
            new += text.flush()
        self._finish(generation, Output(new, count, reason))

    def _finish(self, generation: Generation, output: Output) -> None:
        self._scheduler.remove(generation)
        _emit(generation, output)

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            left = [*self._submitted, *self._scheduler.waiting, *self._scheduler.running]
            self._submitted.clear()
            self._scheduler.clear()
        for generation in left:
            _emit(generation, Output(error=error))


def _emit(generation: Generation, output: Output) -> None:
    if not generation.cancelled:
        generation.sink(output)
