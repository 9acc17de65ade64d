"""The API's answers and refusals, without a network."""

import json

import pytest
from fastapi.testclient import TestClient

from volta_runtime.errors import QueueFullError
from volta_runtime.server.app import create_app
from volta_runtime.server.middleware import MAX_BODY_BYTES

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 5}


def events(response):
    """The JSON of every event, and whether the stream ended as it should."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def error(response):
    """The error object, which must be whole."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


def test_models(client):
    found = client.get("/v1/models").json()
    assert [model["id"] for model in found["data"]] == ["tiny", "alias"]
    assert client.get("/v1/models/alias").json()["max_model_len"] == 256
    assert error(client.get("/v1/models/other"))["code"] == "model_not_found"


def test_health(client):
    response = client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert client.head("/health").status_code == 200


def test_health_after_the_engine_has_stopped(make_engine):
    engine = make_engine()
    client = TestClient(create_app(engine, ("tiny",)))
    engine.stop()
    response = client.get("/health")
    assert response.status_code == 503
    assert error(response)["code"] == "engine_dead"
    assert error(client.post(CHAT, json=HELLO))["code"] == "engine_dead"


def test_chat(client):
    body = client.post(CHAT, json=HELLO | {"model": "alias"}).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "alias"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    prompt = len("user\nhello\nassistant\n") + 3  # bytes, and the template's special tokens
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 5,
        "total_tokens": prompt + 5,
    }


def test_completion(client):
    prompts = ["hello", ["hello"], [*range(3, 9)], [[*range(3, 9)]]]
    bodies = [client.post(COMPLETION, json={"prompt": p, "temperature": 0}).json() for p in prompts]
    assert [b["usage"]["prompt_tokens"] for b in bodies] == [5, 5, 6, 6]
    assert bodies[0]["choices"] == bodies[1]["choices"]
    assert bodies[0]["usage"]["completion_tokens"] == 16  # OpenAI's default
    assert bodies[0]["object"] == "text_completion"


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_stream_says_what_the_whole_says(client, path):
    body = HELLO | {"max_tokens": 40}
    if path == COMPLETION:
        body = {"prompt": "hello", "temperature": 0, "max_tokens": 40}
    whole = client.post(path, json=body).json()
    chunks = events(
        client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    )
    *parts, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    choices = [part["choices"][0] for part in parts]
    if path == CHAT:
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert text == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(c["text"] for c in choices) == whole["choices"][0]["text"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert len({part["id"] for part in chunks}) == 1


def test_usage_only_where_it_was_asked_for(client):
    assert all(
        "usage" not in part for part in events(client.post(CHAT, json=HELLO | {"stream": True}))
    )


def test_stop_string(client):
    whole = client.post(COMPLETION, json={"prompt": "hello", "temperature": 0, "max_tokens": 30})
    text = whole.json()["choices"][0]["text"]
    stop = text[10:12]
    cut = client.post(
        COMPLETION,
        json={"prompt": "hello", "temperature": 0, "max_tokens": 30, "stop": [stop]},
    ).json()["choices"][0]
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temprature", 1, "temprature: unknown field; did you mean temperature?"),
        ("max_token", 1, "max_token: unknown field; did you mean max_tokens?"),
        ("xyzzy", 1, "xyzzy: unknown field"),
        ("temperature", 3.5, "temperature: expected a number from 0 to 2, got 3.5"),
        ("temperature", -1, "temperature: expected a number from 0 to 2, got -1"),
        ("temperature", "hot", 'temperature: expected a number from 0 to 2, got "hot"'),
        ("temperature", True, "temperature: expected a number from 0 to 2, got true"),
        ("top_p", 0, "top_p: expected a number above 0, up to 1, got 0"),
        ("top_k", -2, "top_k: expected a whole number from 1, or 0 or -1 for all tokens, got -2"),
        ("min_p", 1.1, "min_p: expected a number from 0 to 1, got 1.1"),
        ("max_tokens", 0, "max_tokens: expected a whole number from 1, got 0"),
        ("max_tokens", 1.5, "max_tokens: expected a whole number from 1, got 1.5"),
        ("frequency_penalty", 3, "frequency_penalty: expected a number from -2 to 2, got 3"),
        ("repetition_penalty", 0, "repetition_penalty: expected a number from 0.01 to 2, got 0"),
        ("seed", 2**63, f"seed: expected a whole number of at most 64 bits, got {2**63}"),
        ("stop", "", 'stop: expected a non-empty string, or a list of up to 16 of them, got ""'),
        ("stop", 5, "stop: expected a non-empty string, or a list of up to 16 of them, got 5"),
        ("stop_token_ids", ["a"], 'stop_token_ids: expected a list of token ids, got "a"'),
        ("stream", "yes", 'stream: expected true or false, got "yes"'),
        ("stream_options", {"usage": True}, "stream_options.usage: unknown field"),
        ("messages", [], "messages: expected a list of at least one message, got []"),
        ("messages", "hi", 'messages: expected a list of at least one message, got "hi"'),
        (
            "messages",
            [{"role": "robot", "content": "x"}],
            'messages[0].role: expected one of "system", "developer", "user", "assistant", '
            'got "robot"',
        ),
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content: expected a string or a list of text parts (images and audio "
            'are not supported), got [{"type": "image_url", "image_url": {}}]',
        ),
        (
            "messages",
            [{"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}],
            'messages[0].tool_calls: [{"id": "a"}] is refused: tool calls are not supported',
        ),
        ("messages", [{"role": "user"}], "messages[0].content: missing; expected a string"),
        ("messages", [{"role": "user", "content": "x", "contents": 1}], "did you mean content?"),
        ("n", 2, "n: 2 is refused: one answer per request is supported; leave it out or send 1"),
        ("logprobs", True, "logprobs: true is refused: log probabilities are not supported"),
        ("tools", [{"type": "function"}], "tool calls are not supported"),
        ("response_format", {"type": "json_object"}, "guided decoding is not supported"),
        ("store", True, "store: true is refused"),
        ("logit_bias", {"5": 1}, "logit_bias"),
        ("skip_special_tokens", False, "skip_special_tokens: false is refused"),
        ("prompt", "x", "prompt: unknown field"),
    ],
)
def test_bad_fields_are_named(client, field, value, message):
    response = client.post(CHAT, json=HELLO | {field: value})
    assert response.status_code == 400
    found = error(response)
    assert message in found["message"]
    assert found["param"].startswith(field)
    assert found["type"] == "invalid_request_error"


def test_a_missing_field_is_named(client):
    found = error(client.post(CHAT, json={}))
    assert found["message"] == "messages: missing; expected a list of at least one message"
    assert error(client.post(COMPLETION, json={}))["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["a", "b"], "prompt: expected one prompt"),
        ([], "prompt: expected one prompt"),
        ("", "prompt: holds no tokens"),
        ([300], "token id 300 is beyond the vocabulary, whose last is 258"),
        ([-1], "prompt: expected one prompt"),
    ],
)
def test_bad_prompts(client, prompt, message):
    response = client.post(COMPLETION, json={"prompt": prompt})
    assert response.status_code == 400
    assert message in error(response)["message"]


def test_harmless_fields_are_accepted(client):
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "n": 1,
        "tools": None,
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "logprobs": False,
        "logit_bias": {},
        "service_tier": "auto",
        "frequency_penalty": 0,
        "stop": None,
        "seed": None,
    }
    assert client.post(CHAT, json=HELLO | harmless).status_code == 200


@pytest.mark.parametrize(
    ("content", "headers", "message"),
    [
        (b"{", {"content-type": "application/json"}, "the body is not valid JSON"),
        (b"[]", {"content-type": "application/json"}, "the body must be a JSON object"),
        (b'{"messages": []}', {"content-type": "text/plain"}, "Content-Type: application/json"),
        (b"", {"content-type": "application/json"}, "the body must be a JSON object"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
            {"content-type": "application/json"},
            "temperature: expected a number from 0 to 2",
        ),
        (
            rb'{"messages": [{"role": "user", "content": "cut \ud83d"}]}',
            {"content-type": "application/json"},
            r"the body holds '\ud83d', half of a surrogate pair",
        ),
    ],
)
def test_bad_bodies(client, content, headers, message):
    response = client.post(CHAT, content=content, headers=headers)
    assert response.status_code == 400
    assert message in error(response)["message"]


def test_an_unknown_model_gets_the_served_names(client):
    response = client.post(CHAT, json=HELLO | {"model": "gpt-4"})
    assert response.status_code == 404
    found = error(response)
    assert found["message"] == 'model: "gpt-4" is not served here; served: tiny, alias'
    assert (found["param"], found["code"]) == ("model", "model_not_found")


def test_unknown_paths_and_methods(client):
    assert "/v1/embeddings" in error(client.post("/v1/embeddings", json={}))["message"]
    response = client.get(CHAT)
    assert response.status_code == 405
    assert "Method Not Allowed" in error(response)["message"]


def test_the_context_is_a_bound(client):
    response = client.post(COMPLETION, json={"prompt": "x" * 250, "max_tokens": 20})
    assert response.status_code == 400
    found = error(response)
    assert found["code"] == "context_length_exceeded"
    assert all(f" {n} " in found["message"] for n in (250, 20, 270, 256, 14))
    fits = client.post(COMPLETION, json={"prompt": "x" * 250, "max_tokens": 6, "ignore_eos": True})
    assert fits.json()["usage"]["total_tokens"] == 256
    rest = client.post(
        CHAT, json={"messages": HELLO["messages"], "ignore_eos": True, "temperature": 0}
    )
    assert rest.json()["usage"]["total_tokens"] == 256


def test_bodies_are_bounded(client):
    big = b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'
    json_type = {"content-type": "application/json"}
    for content in (big, iter([big[:100], big[100:]])):  # announced, and in chunks
        response = client.post(COMPLETION, content=content, headers=json_type)
        assert response.status_code == 413
        assert str(MAX_BODY_BYTES) in error(response)["message"]


def test_a_full_queue_says_when_to_come_back(client, monkeypatch):
    def full(*_):
        raise QueueFullError("full")

    monkeypatch.setattr("volta_runtime.engine.engine.Engine.submit", full)
    for body in (HELLO, HELLO | {"stream": True}):
        response = client.post(CHAT, json=body)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert error(response)["code"] == "queue_full"


def test_api_key(make_engine):
    client = TestClient(create_app(make_engine(), ("tiny",), api_key="sécret"))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sécret".encode()}):
        response = client.get("/v1/models", headers=headers)
        assert response.status_code == 401
        assert error(response)["code"] == "invalid_api_key"
    right = {"Authorization": "Bearer sécret".encode()}
    assert client.get("/v1/models", headers=right).status_code == 200
    assert client.get("/health").status_code == 200


def test_metrics(client):
    client.post(CHAT, json=HELLO)
    client.post(CHAT, json=HELLO | {"n": 2})
    text = client.get("/metrics").text
    prompt = client.post(CHAT, json=HELLO).json()["usage"]["prompt_tokens"]
    for line in (
        'volta_request_total{outcome="length"} 1.0',
        'volta_request_total{outcome="refused"} 1.0',
        f"volta_prompt_tokens_total {prompt}.0",
        "volta_generation_tokens_total 5.0",
        "volta_time_to_first_token_seconds_count 1.0",
        "volta_inter_token_latency_seconds_count 4.0",
        "volta_e2e_request_latency_seconds_count 1.0",
        "volta_num_requests_running 0.0",
        "volta_num_requests_waiting 0.0",
    ):
        assert line in text
