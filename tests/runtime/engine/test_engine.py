import threading
import time

import pytest
import torch

from volta_runtime.engine import Engine, EngineConfig, Tokenizer
from volta_runtime.errors import EngineDeadError, ModelError, QueueFullError, VoltaError


def eventually(condition, timeout=10):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def test_length_and_counts(make_engine, run):
    text, last = run(make_engine(), max_tokens=8).finish()
    assert last.finish_reason == "length"
    assert last.completion_tokens == 8
    assert isinstance(text, str)


def test_together_as_alone(make_engine, run):
    prompts = ["a", "a longer prompt that is read in pieces " * 4, "b", "hello", "x" * 60]
    alone = make_engine(max_num_seqs=1, prompt_tokens_per_step=256)
    expected = [run(alone, prompt, max_tokens=20).finish() for prompt in prompts]
    together = make_engine(max_num_seqs=3, prompt_tokens_per_step=16)
    runs = [run(together, prompt, max_tokens=20) for prompt in prompts]
    assert [r.finish() for r in runs] == expected


def test_seeds(make_engine, run):
    def text(engine, **params):
        return run(engine, temperature=1.0, max_tokens=16, **params).finish()[0]

    engine = make_engine(seed=1)
    assert text(engine, seed=7) == text(engine, seed=7)
    first = [text(engine) for _ in range(2)]
    assert first[0] != first[1]


def test_server_seed_repeats_across_starts(make_engine, run):
    texts = [run(make_engine(seed=3), temperature=1.0, max_tokens=16).finish()[0] for _ in range(2)]
    assert texts[0] == texts[1]


def test_stop_token_and_ignore_eos(load, tiny, run):
    """A model whose head always prefers the end token."""
    model = load(tiny)
    forward = model.forward

    def ending(tokens, segments):
        logits = forward(tokens, segments)
        logits[:, 2] = logits.max() + 1
        return logits

    model.forward = ending
    engine = Engine(model, Tokenizer(tiny), EngineConfig())
    try:
        assert run(engine, ignore_eos=False).finish()[1].finish_reason == "stop"
        assert run(engine, ignore_eos=False).finish()[1].completion_tokens == 1
        assert run(engine, ignore_eos=True).finish() == ("", run(engine).finish()[1])
        stopped = run(engine, stop_token_ids=frozenset({2})).finish()[1]
        assert (stopped.finish_reason, stopped.completion_tokens) == ("stop", 1)
    finally:
        engine.stop()


def test_cancel_frees_the_slot(make_engine, run):
    engine = make_engine(max_num_seqs=1)
    first, queued, last = (run(engine, max_tokens=n) for n in (200, 200, 3))
    first.next()
    engine.cancel(queued.generation)
    engine.cancel(first.generation)
    assert last.finish()[1].completion_tokens == 3
    eventually(lambda: (engine.running, engine.waiting) == (0, 0))
    assert queued.outputs.empty()


def test_the_queue_is_bounded(make_engine, run):
    engine = make_engine(max_num_seqs=1, max_waiting=1)
    first = run(engine, max_tokens=200)
    first.next()
    run(engine, max_tokens=200)
    with pytest.raises(QueueFullError, match="1 requests are running and 1 waiting"):
        run(engine)


def test_a_long_prompt_does_not_stall_a_stream(make_engine, run):
    engine = make_engine(prompt_tokens_per_step=8)
    stream = run(engine, max_tokens=200)
    stream.next()
    long = run(engine, "y" * 200, max_tokens=1)
    steps = 0
    while long.outputs.empty():
        stream.next()
        steps += 1
    assert steps >= 200 // 8 - 2  # one token of the stream in every step of the prompt


def test_noise_is_an_error_and_not_an_answer(load, tiny, run):
    model = load(tiny)
    model.forward = lambda tokens, segments: _advance(segments, torch.full((1, 259), torch.nan))
    engine = Engine(model, Tokenizer(tiny), EngineConfig())
    try:
        assert isinstance(run(engine).finish()[1].error, VoltaError)
        assert engine.alive
    finally:
        engine.stop()


def _advance(segments, logits):
    for segment in segments:
        segment.cache.length += segment.length
    return logits


def test_a_failure_ends_every_request_and_is_visible(load, tiny, run):
    model = load(tiny)
    entered, go = threading.Event(), threading.Event()

    def broken(tokens, segments):
        entered.set()
        go.wait()
        raise RuntimeError("the GPU has fallen off the bus")

    model.forward = broken
    engine = Engine(model, Tokenizer(tiny), EngineConfig(max_num_seqs=1))
    runs = [run(engine), run(engine)]
    entered.wait()
    go.set()
    for r in runs:
        assert "fallen off the bus" in str(r.finish()[1].error)
    assert not engine.alive
    with pytest.raises(EngineDeadError, match="fallen off the bus"):
        run(engine)


def test_trouble_with_one_request_ends_no_other(make_engine, run):
    engine = make_engine()
    good, bad = run(engine, max_tokens=100), run(engine, max_tokens=100)
    bad.generation.text.push = None
    assert isinstance(bad.finish()[1].error, VoltaError)
    assert good.finish()[1].completion_tokens == 100
    assert engine.alive


def test_a_tokenizer_of_another_model_is_refused(make_tiny, load, tiny):
    path = make_tiny(vocab_size=200)
    (path / "tokenizer.json").unlink()  # its own would not fit either
    model = load(path)
    with pytest.raises(ModelError, match=r"ids up to 258.* vocab_size is 200"):
        Engine(model, Tokenizer(tiny), EngineConfig())


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("chat_template.jinja", b"\xff", "chat_template.jinja: cannot read"),
        ("chat_template.jinja", b"{% for %}", "the chat template is broken, line 1"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "must be a string, not 5"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "is malformed"),
        ("generation_config.json", b'{"eos_token_id": "2"}', "eos_token_id is '2', expected"),
        ("tokenizer.json", b"{", "tokenizer.json: cannot read the tokenizer"),
    ],
)
def test_broken_tokenizer_files_are_named(make_tiny, file, content, message):
    directory = make_tiny()
    (directory / file).write_bytes(content)
    with pytest.raises(ModelError) as raised:
        Tokenizer(directory)
    assert message in str(raised.value)


def test_stop_ends_running_requests(make_engine, run):
    engine = make_engine()
    running = run(engine, max_tokens=250)
    running.next()
    engine.stop()
    assert isinstance(running.finish()[1].error, EngineDeadError)
