"""The rebuilt tokenizer, on a tiny vocabulary and on the demo model's."""

import json

import pytest
from tokenizers import Tokenizer

from volta_runtime.convert import convert_gguf
from volta_runtime.convert.source import GGUFSource
from volta_runtime.convert.tokenizer import write_tokenizer

TEXTS = [
    "Hello, world! It's what we'll do.",
    "  leading, double  and trailing spaces  \n\n\tand lines\r\n",
    "1234567890 3.14 x2y 2026-11-30 ½ ٣ 一二 Ⅷ",
    "Grüße, naïve café, Ελληνικά, русский, العربية, हिन्दी, 日本語, 한국어",
    "🙂 👩‍👩‍👧‍👦 🇩🇪 ✈️",
    "def f(x):\n    return x**2  # comment",
    "",
]


@pytest.fixture
def tiny(make_gguf, tmp_path):
    convert_gguf(make_gguf(), tmp_path / "out")
    return Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))


@pytest.fixture(scope="module")
def demo(demo_gguf, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    ids = write_tokenizer(GGUFSource(demo_gguf), directory)
    assert ids == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return directory


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS)
def test_tiny_vocabulary_gives_every_text_back(tiny, text):
    assert round_trip(tiny, text) == text


def test_merges_apply_in_order_and_digits_stay_single(tiny):
    assert tiny.encode("hello").tokens == ["hello"]
    assert tiny.encode(" w").tokens == ["Ġw"]
    assert tiny.encode("12").tokens == ["1", "2"]  # although the merge "1 2" exists


def test_special_tokens_are_whole_and_flagged(tiny):
    encoding = tiny.encode("<|im_start|>he<|im_end|>")
    assert encoding.tokens == ["<|im_start|>", "he", "<|im_end|>"]
    assert encoding.ids[0] == 1
    assert encoding.ids[2] == 2
    assert tiny.decode(encoding.ids) == "he"


@pytest.mark.parametrize("text", TEXTS)
def test_demo_vocabulary_gives_every_text_back(demo, text):
    assert round_trip(Tokenizer.from_file(str(demo / "tokenizer.json")), text) == text


def test_demo_special_tokens_and_template(demo):
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    assert len(added) == 17
    assert all(token.special for token in added.values())
    assert tokenizer.get_vocab_size() == 49152
    prompt = "<|im_start|>user\nWhat is 2024?<|im_end|>\n"
    assert tokenizer.encode(prompt).tokens == [
        "<|im_start|>", "user", "Ċ", "What", "Ġis", "Ġ", "2", "0", "2", "4", "?", "<|im_end|>", "Ċ",
    ]  # fmt: skip
    config = json.loads((demo / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert config["bos_token"] == "<|im_start|>"
    assert "add_generation_prompt" in config["chat_template"]
