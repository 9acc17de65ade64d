"""The request bodies: fields, ranges and defaults.

A field's description completes the sentence "`value` is not …", which is the error a client sees.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from volta_runtime.engine import SamplingParams
from volta_runtime.server.compat import HARMLESS, HARMLESS_IN_MESSAGES, drop_harmless

StopString = Annotated[str, Field(min_length=1)]
Penalty = Annotated[float, Field(ge=-2, le=2, description="a number from -2 to 2")]


class StreamOptions(BaseModel):
    """What a stream carries besides the text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = Field(False, description="true or false")
    continuous_usage_stats: Literal[False] = Field(False, description="false (not supported)")


def _refuse_broken_unicode(body: dict[str, Any]) -> None:
    """JSON can spell halves of surrogate pairs; they are no text, and nothing can encode them."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "broken_unicode",
            "the body holds {half}, half of a surrogate pair: a character was cut in two",
            {"half": ascii(error.object[error.start])},
        ) from None


class GenerationRequest(BaseModel):
    """What completions and chat completions have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = Field(None, description="the name of a served model")
    max_tokens: int | None = Field(None, ge=1, description="a whole number from 1")
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0, up to 1")
    top_k: int | None = Field(
        None, ge=-1, description="a whole number from 1, or 0 or -1 for all tokens"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    presence_penalty: Penalty | None = Field(None, description="a number from -2 to 2")
    frequency_penalty: Penalty | None = Field(None, description="a number from -2 to 2")
    repetition_penalty: float | None = Field(
        None, ge=0.01, le=2, description="a number from 0.01 to 2"
    )
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="a whole number of at most 64 bits"
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = Field(
        None, description="a non-empty string, or a list of up to 16 of them"
    )
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, description="a list of token ids"
    )
    ignore_eos: bool | None = Field(None, description="true or false")
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description='an object such as {"include_usage": true}'
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_harmless(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        _refuse_broken_unicode(body)
        return drop_harmless(body, cls.model_fields, HARMLESS)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The engine's parameters, with the API's defaults filled in."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        given = {
            name: value
            for name in (
                "temperature",
                "top_p",
                "min_p",
                "presence_penalty",
                "frequency_penalty",
                "repetition_penalty",
                "seed",
                "ignore_eos",
            )
            if (value := getattr(self, name)) is not None
        }
        return SamplingParams(
            max_tokens=max_tokens,
            top_k=max(self.top_k or 0, 0),
            stop=tuple(stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            **given,
        )


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=1)]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]],
            Field(min_length=1, max_length=1),
        ]
    ) = Field(description="one prompt: a string or a list of token ids")

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt without the list that may be around it."""
        match self.prompt:
            case [str() | list() as only]:
                return only
            case other:
                return other  # type: ignore[return-value]


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"] = Field(description='"text", the only kind this model reads')
    text: str = Field(description="a string")


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description='one of "system", "developer", "user", "assistant"'
    )
    content: str | list[TextPart] = Field(
        description="a string or a list of text parts (images and audio are not supported)"
    )
    name: str | None = Field(None, description="a string")

    @model_validator(mode="before")
    @classmethod
    def _drop_harmless(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        return drop_harmless(message, cls.model_fields, HARMLESS_IN_MESSAGES)

    def for_template(self) -> dict[str, str]:
        """The form that chat templates read; "developer" is the newer name of "system"."""
        text = (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text} | ({"name": self.name} if self.name else {})


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, description="a list of at least one message")
    max_completion_tokens: int | None = Field(None, ge=1, description="a whole number from 1")


# Fields whose values are objects, or lists of objects, with fields of their own.
NESTED: dict[str, type[BaseModel]] = {"messages": Message, "stream_options": StreamOptions}
