"""The tokenizer and the chat template as findings."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Finding, Status
from volta_doctor.preflight.judge import judge
from volta_doctor.preflight.look import look

OWN = [row for row in model_checks().values() if row.area == "tokenizer"]
SOUND = {
    "tokenizer.json": {"model": {"vocab": {f"w{n}": n for n in range(250)}}},
    "chat_template.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


@pytest.fixture
def told(llama: Callable[..., Path]) -> Callable[..., dict[str, Finding]]:
    """Judge a small Llama of 256 rows with these files beside it; None takes one out."""

    def judged(files: Mapping[str, Any], **config: Any) -> dict[str, Finding]:
        held = {name: text for name, text in {**SOUND, **files}.items() if text is not None}
        path = llama(config=config, files=held)
        return {f.id: f for f in judge(look(path, None, Flags(), None, Facts()), OWN)}

    return judged


def test_a_sound_one_is_ok_with_what_was_seen(told: Callable[..., dict[str, Finding]]) -> None:
    found = told({})
    assert {f.status for f in found.values()} == {Status.OK}
    assert found["tokenizer-vocab"].message == "250 tokens, 256 rows."
    assert found["chat-template"].message == "chat_template.jinja is sound Jinja."


@pytest.mark.parametrize(
    ("files", "config", "check", "status", "subject", "message"),
    [
        (
            {"tokenizer.json": {"model": {"vocab": {"a": 256}}}},
            {},
            "tokenizer-vocab",
            Status.FAIL,
            "tokenizer.json",
            "The tokenizer has 257 tokens, the embedding 256 rows.",
        ),
        (
            {},
            {"eos_token_id": 300},
            "tokenizer-vocab",
            Status.FAIL,
            "config.json",
            "eos_token_id is 300, where ids go from 0 to 255.",
        ),
        (
            {"tokenizer.json": None},
            {},
            "tokenizer-vocab",
            Status.WARN,
            "model",
            "No tokenizer lies beside the weights: engines take one by --tokenizer.",
        ),
        (
            {"tokenizer.json": None, "tekken.json": {}},
            {},
            "tokenizer-vocab",
            Status.UNKNOWN,
            "model",
            "Nothing lists the tokens: tekken.json is of a kind that is not read here.",
        ),
        (
            {"chat_template.jinja": "{% if %}"},
            {},
            "chat-template",
            Status.FAIL,
            "chat_template.jinja",
            "The chat template is broken in its line 1: Expected an expression, got",
        ),
        (
            {"chat_template.jinja": None},
            {},
            "chat-template",
            Status.WARN,
            "model",
            "There is no chat template: /v1/chat/completions refuses every request.",
        ),
    ],
)
def test_a_fault_is_a_finding(
    told: Callable[..., dict[str, Finding]],
    files: Mapping[str, Any],
    config: Mapping[str, Any],
    check: str,
    status: Status,
    subject: str,
    message: str,
) -> None:
    finding = told(files, **config)[check]
    assert (finding.status, finding.subject) == (status, subject)
    assert finding.message.startswith(message)


def test_before_the_download_nothing_is_said_to_be_missing(llama: Callable[..., Path]) -> None:
    path = llama(shards=2)
    for shard in path.glob("*.safetensors"):
        shard.unlink()
    found = {f.id: f.status for f in judge(look(path, None, Flags(), None, Facts()), OWN)}
    assert set(found.values()) == {Status.UNKNOWN}
    (path / "tokenizer.json").write_text(json.dumps(SOUND["tokenizer.json"]))
    found = {f.id: f.status for f in judge(look(path, None, Flags(), None, Facts()), OWN)}
    assert found["tokenizer-vocab"] is Status.OK  # against vocab_size
