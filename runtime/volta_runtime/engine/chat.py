"""The checkpoint's chat template, under Hugging Face's conventions."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from volta_runtime.errors import ModelError, RequestError


class ChatTemplate:
    """Renders messages to the prompt that the model was trained on.

    The template is code from the checkpoint, so it runs in jinja2's sandbox.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        if not isinstance(source, str):
            raise ModelError(f"the chat template must be a string, not {source!r}")
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is broken, line {error.lineno}: {error}") from None
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises RequestError when the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens
            )
        except Exception as error:  # a template is a program: it may fail in any way
            raise RequestError(
                f"messages: the model's chat template refuses them: {error}", "messages"
            ) from None


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(value: Any, indent: int | None = None) -> str:
    # jinja2's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
