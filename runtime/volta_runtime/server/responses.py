"""The bodies the API answers with, whole or streamed as server-sent events."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from typing import Any

from volta_runtime.engine import Output

Json = dict[str, Any]


class Answer(ABC):
    """Builds one answer's objects; subclasses know where the text goes."""

    prefix: str
    whole: str
    chunk: str

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    @abstractmethod
    def text_choice(self, text: str) -> Json:
        """The part of a choice that holds the whole text."""

    @abstractmethod
    def delta_choice(self, text: str) -> Json:
        """The part of a streamed choice that holds the next text."""

    def opening(self) -> list[Json]:
        """Chunks before the first text."""
        return []

    def full(self, text: str, last: Output) -> Json:
        """The answer in one piece."""
        choice = self._choice(self.text_choice(text), last.finish_reason)
        return self._object(self.whole, [choice]) | {"usage": self._usage(last)}

    def delta(self, output: Output) -> Json:
        """The next chunk of a stream."""
        return self._object(
            self.chunk, [self._choice(self.delta_choice(output.text), output.finish_reason)]
        )

    def usage(self, last: Output) -> Json:
        """The closing chunk that only carries token counts."""
        return self._object(self.chunk, []) | {"usage": self._usage(last)}

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {**self._head, "object": kind, "choices": choices}

    def _usage(self, last: Output) -> Json:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": last.completion_tokens,
            "total_tokens": self._prompt_tokens + last.completion_tokens,
        }

    @staticmethod
    def _choice(content: Json, finish_reason: str | None) -> Json:
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


class CompletionAnswer(Answer):
    """POST /v1/completions."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def text_choice(self, text: str) -> Json:
        """See Answer."""
        return {"text": text}

    delta_choice = text_choice


class ChatAnswer(Answer):
    """POST /v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def text_choice(self, text: str) -> Json:
        """See Answer."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta_choice(self, text: str) -> Json:
        """See Answer."""
        return {"delta": {"content": text} if text else {}}

    def opening(self) -> list[Json]:
        """The role comes first and alone, as clients expect."""
        role = {"delta": {"role": "assistant", "content": ""}}
        return [self._object(self.chunk, [self._choice(role, None)])]


def event(data: Json | str) -> str:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n"
