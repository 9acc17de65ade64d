import pytest

from volta_runtime.engine import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return Tokenizer(tiny)


def pieces(tokenizer, text, stop=()):
    """What each byte of the text releases, until a stop string; and the stream."""
    stream = tokenizer.stream(stop)
    out = []
    for token in tokenizer.encode(text):
        out.append(stream.push(token))
        if stream.stopped:
            break
    return out, stream


def test_characters_come_whole(tokenizer):
    text = "né 🇫🇷 👩‍🚀!"
    out, stream = pieces(tokenizer, text)
    assert len(out) == len(text.encode())
    assert "".join(out) == text
    assert not any("\ufffd" in piece for piece in out)
    assert stream.flush() == ""


def test_incomplete_bytes_at_the_end_are_dropped(tokenizer):
    stream = tokenizer.stream()
    tokens = tokenizer.encode("a🚀")
    assert "".join(stream.push(token) for token in tokens[:-1]) + stream.flush() == "a"


def test_special_tokens_leave_no_text(tokenizer):
    stream = tokenizer.stream()
    tokens = [*tokenizer.encode("a"), 2, 1, *tokenizer.encode("b")]
    assert [stream.push(token) for token in tokens] == ["a", "", "", "b"]


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one END two", ("END",), ["o", "n", "e", " ", "", "", ""]),
        ("EN END", ("END",), ["", "", "EN ", "", "", ""]),
        ("EEND", ("END",), ["", "E", "", ""]),
        ("abcd", ("bcd", "c"), ["a", "", "b"]),  # the one complete first wins
        ("x🚀y", ("🚀",), ["x", "", "", "", ""]),
        ("no stop", (), list("no stop")),
    ],
)
def test_stop_strings(tokenizer, text, stop, expected):
    out, stream = pieces(tokenizer, text, stop)
    assert out == expected
    assert stream.stopped == bool(stop)


def test_a_stop_string_that_does_not_come_is_released(tokenizer):
    out, stream = pieces(tokenizer, "the EN", ("END",))
    assert "".join(out) == "the "
    assert stream.flush() == "EN"
    assert not stream.stopped
