"""The server as its users meet it: a process, sockets, signals and the openai client."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise

import httpx
import openai
import pytest
import uvicorn

from volta_runtime.server import serve

HELLO = [{"role": "user", "content": "hello"}]
RUNNING = "volta_num_requests_running"
VOLTA_SERVE = (sys.executable, "-c", "from volta_runtime.cli import main; main()")


@pytest.fixture
def sdk(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_openai_client(sdk):
    answer = sdk.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_completion_tokens=20
    )
    assert answer.usage.completion_tokens == 20
    stream = sdk.chat.completions.create(
        model="tiny",
        messages=HELLO,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage == answer.usage
    # The usual next turn sends the answer back as the SDK holds it.
    again = [*HELLO, answer.choices[0].message, *HELLO]
    assert sdk.chat.completions.create(model="tiny", messages=again, max_tokens=1).choices
    assert sdk.completions.create(model="tiny", prompt="a").choices[0].finish_reason
    assert [model.id for model in sdk.models.list()] == ["tiny"]


def test_openai_client_sees_its_own_errors(sdk):
    with pytest.raises(openai.NotFoundError, match="served: tiny"):
        sdk.chat.completions.create(model="gpt-4", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="temperature: expected") as raised:
        sdk.chat.completions.create(model="tiny", messages=HELLO, temperature=5)
    assert raised.value.param == "temperature"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(server, stream):
    body = {"prompt": "hello", "max_tokens": 250, "ignore_eos": True, "stream": stream}
    before = server.metric('volta_request_total{outcome="cancelled"}')
    raw = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(raw) + raw
        )
        server.wait_for(RUNNING, 1)
    server.wait_for('volta_request_total{outcome="cancelled"}', before + 1)
    server.wait_for(RUNNING, 0)


def test_a_prompt_far_beyond_the_context_is_refused_beside_a_stream(server):
    body = {"prompt": "hi", "max_tokens": 250, "ignore_eos": True, "stream": True}
    times = []

    def follow():
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            times.extend(time.monotonic() for line in response.iter_lines() if line)

    stream = threading.Thread(target=follow)
    stream.start()
    server.wait_for(RUNNING, 1)
    start = time.monotonic()
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": "word " * 20000})
    refused_after = time.monotonic() - start
    stream.join()
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    # Too long for any tokens, so it is not tokenised; the longest of the vocabulary has 13 letters.
    assert "100000 characters are at least 7692 tokens" in response.json()["error"]["message"]
    assert refused_after < 5
    assert max(b - a for a, b in pairwise(times)) < 1


def test_sigterm_lets_short_streams_finish_and_ends_long_ones(start_server, make_tiny):
    server = start_server(make_tiny(max_position_embeddings=1 << 16))
    results = {}

    def follow(name, tokens):
        body = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            results[name] = [line for line in response.iter_lines() if line]

    threads = [
        threading.Thread(target=follow, args=("short", 300)),
        threading.Thread(target=follow, args=("long", 60000)),
    ]
    for thread in threads:
        thread.start()
    server.wait_for(RUNNING, 2)
    start = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - start < 8
    for thread in threads:
        thread.join()
    assert '"finish_reason": "length"' in results["short"][-2]
    assert "shutting down" in results["long"][-2]
    assert results["long"][-1] == "data: [DONE]"
    assert "Traceback" not in server.log


def test_a_failed_engine_ends_the_process_for_a_restart(start_server, tiny):
    server = start_server(
        tiny,
        patch="from volta_runtime.models.llama import Llama\n"
        "def broken(*_): raise RuntimeError('the GPU has fallen off the bus')\n"
        "Llama.forward = broken",
    )
    response = server.http.post("/v1/completions", json={"prompt": "hi"})
    assert response.status_code == 503
    assert "fallen off the bus" in response.json()["error"]["message"]
    assert server.process.wait(10) == 70  # EX_SOFTWARE
    assert "volta-serve: error: the engine has failed: the GPU" in server.process.stderr.read()


def test_a_port_taken_while_the_model_is_read_is_named_too(tiny):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with subprocess.Popen(
            [*VOLTA_SERVE, "serve", "--model", tiny, "--port", str(port)],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert "loading" in process.stderr.readline()
            other.listen()
            log = process.stderr.read()
    assert process.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use by " in log
    assert "Traceback" not in log


def test_a_taken_port_is_named_with_its_owner(volta_serve, tiny):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = volta_serve("serve", "--model", tiny, "--port", port)
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use by " in done.stderr
    assert "(pid " in done.stderr
    assert "Traceback" not in done.stderr


def test_readiness_is_told_to_systemd(start_server, tiny, tmp_path):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(path))
        inbox.settimeout(20)
        server = start_server(tiny, env={"NOTIFY_SOCKET": str(path)})
        assert inbox.recv(100) == b"READY=1"
        assert server.http.get("/health").status_code == 200
    assert server.stop() == 0


class Step:
    """An engine whose step at hand has run for so long."""

    failure = None

    def __init__(self, seconds):
        self.step_s = seconds


@pytest.mark.parametrize(("step_s", "beats"), [(0.0, 3), (9.0, 3), (11.0, 0)])
def test_the_watchdog_hears_of_an_engine_that_moves(monkeypatch, step_s, beats):
    """20 s of watchdog: a sign each 5 s, and none while a step has run for more than 10 s."""
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    said, clock = [], iter([0, 1, 5, 6, 10])
    monkeypatch.setattr(serve, "notify", said.append)
    monkeypatch.setattr(serve.time, "monotonic", lambda: next(clock))
    watched = serve._Server(uvicorn.Config(None), Step(step_s), None)
    for _ in range(5):
        watched._beat()
    assert said == ["WATCHDOG=1"] * beats


def test_a_server_lives_under_a_watchdog(start_server, tiny, tmp_path):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(path))
        inbox.settimeout(20)
        server = start_server(tiny, env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1000000"})
        heard = [inbox.recv(100) for _ in range(4)]
        assert server.stop() == 0
    assert heard.count(b"READY=1") == 1
    assert heard.count(b"WATCHDOG=1") == 3


@pytest.mark.parametrize("by_file", [True, False])
def test_api_key(start_server, tiny, tmp_path, by_file):
    (tmp_path / "key").write_text("secret\n")
    options = ["--api-key-file", str(tmp_path / "key")] if by_file else []
    server = start_server(tiny, *options, env=None if by_file else {"VOLTA_API_KEY": "secret"})
    assert server.http.get("/v1/models").status_code == 401
    headers = {"Authorization": "Bearer secret"}
    assert server.http.get("/v1/models", headers=headers).status_code == 200


def test_only_this_machine_is_served_by_default(server):
    assert server.url.startswith("http://127.0.0.1:")
