"""Fields of the OpenAI and vLLM APIs that this server knows but does not act on.

Clients send them at values that change nothing; those are accepted. Any other value is refused
with the reason, because ignoring it would give an answer that was not asked for.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

ANY = object()

_SHOWN = 80  # characters of a refused value that its message repeats


@dataclass(frozen=True)
class Harmless:
    """values: what may be sent besides null, or ANY. reason: why another value is refused."""

    values: Any
    reason: str = ""

    def accepts(self, value: Any) -> bool:
        """Whether the value changes nothing."""
        if value is None or self.values is ANY:
            return True
        # 1 == True in Python, but not in JSON.
        return any(value == v and type(value) is type(v) for v in self.values)

    def refusal(self, value: Any) -> str:
        """The sentence that refuses a value."""
        instead = " or send " + " or ".join(map(json.dumps, self.values)) if self.values else ""
        return f"{shown(value)} is refused: {self.reason}; leave it out{instead}"


def shown(value: Any) -> str:
    """A value of a request as JSON, cut to fit a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_TOOLS = "tool calls are not supported"
_LOGPROBS = "log probabilities are not supported"
_ONE = "one answer per request is supported"
_TEXT = "only text is supported"
_GUIDED = "guided decoding is not supported"
_TEMPLATE = "the chat template is rendered with its defaults"
_TOKENS = "special tokens are always left out of the text"

HARMLESS = {
    # Bookkeeping of the client: nothing is stored here.
    "user": Harmless(ANY),
    "metadata": Harmless(ANY),
    "safety_identifier": Harmless(ANY),
    "prompt_cache_key": Harmless(ANY),
    "request_id": Harmless(ANY),
    "priority": Harmless([0], "requests are served in order of arrival"),
    "store": Harmless([False], "answers are not stored"),
    "service_tier": Harmless(["auto", "default"], "there is one tier"),
    # Several answers, and their probabilities.
    "n": Harmless([1], _ONE),
    "best_of": Harmless([1], _ONE),
    "use_beam_search": Harmless([False], "beam search is not supported"),
    "length_penalty": Harmless([1, 1.0], "beam search is not supported"),
    "logprobs": Harmless([False], _LOGPROBS),
    "top_logprobs": Harmless([0], _LOGPROBS),
    "prompt_logprobs": Harmless([], _LOGPROBS),
    "logit_bias": Harmless([{}], "biased logits are not supported"),
    "echo": Harmless([False], "the prompt is not repeated in the answer"),
    "suffix": Harmless([""], "insertion is not supported"),
    "min_tokens": Harmless([0], "a least length is not supported; ignore_eos is"),
    # Tools.
    "tools": Harmless([[]], _TOOLS),
    "tool_choice": Harmless(["none", "auto"], _TOOLS),
    "parallel_tool_calls": Harmless([True, False], _TOOLS),
    "functions": Harmless([[]], _TOOLS),
    "function_call": Harmless(["none", "auto"], _TOOLS),
    # Other media and other shapes of output.
    "modalities": Harmless([["text"]], _TEXT),
    "audio": Harmless([], _TEXT),
    "response_format": Harmless([{"type": "text"}], _GUIDED),
    "guided_json": Harmless([], _GUIDED),
    "guided_regex": Harmless([], _GUIDED),
    "guided_choice": Harmless([], _GUIDED),
    "guided_grammar": Harmless([], _GUIDED),
    "structured_outputs": Harmless([], _GUIDED),
    "prediction": Harmless([], "predicted output is not supported"),
    "reasoning_effort": Harmless(["none"], "the models served here do not reason apart"),
    "verbosity": Harmless(["medium"], "the length of answers is the model's choice"),
    "web_search_options": Harmless([], "web search is not supported"),
    # vLLM's options of text and template.
    "skip_special_tokens": Harmless([True], _TOKENS),
    "spaces_between_special_tokens": Harmless([True], _TOKENS),
    "include_stop_str_in_output": Harmless([False], "stop strings are left out of the text"),
    "add_special_tokens": Harmless([], "the tokenizer's own rule decides"),
    "add_generation_prompt": Harmless([True], _TEMPLATE),
    "continue_final_message": Harmless([False], _TEMPLATE),
    "chat_template": Harmless([], _TEMPLATE),
    "chat_template_kwargs": Harmless([{}], _TEMPLATE),
    "documents": Harmless([[]], _TEMPLATE),
    "truncate_prompt_tokens": Harmless([], "a prompt is never cut"),
}


# The SDK sends an answer back as it was received, with these.
HARMLESS_IN_MESSAGES = {
    "refusal": Harmless([], _TEXT),
    "annotations": Harmless([[]], _TEXT),
    "audio": Harmless([], _TEXT),
    "tool_calls": Harmless([[]], _TOOLS),
    "function_call": Harmless([], _TOOLS),
}


def drop_harmless(
    body: Mapping[str, Any], fields: Collection[str], table: Mapping[str, Harmless]
) -> dict[str, Any]:
    """An object without the fields of the table; `fields` are those that are acted on.

    Raises PydanticCustomError, naming the field in its context, for a value that would matter.
    """
    kept = {}
    for name, value in body.items():
        row = None if name in fields else table.get(name)
        if row is None:
            kept[name] = value
        elif not row.accepts(value):
            raise PydanticCustomError(
                "unsupported_value", "{reason}", {"field": name, "reason": row.refusal(value)}
            )
    return kept
