"""The tokenizer held against the embedding, the configs and the chat template."""

import json
import time

import gguf
import pytest
import tokenizers
from checkpoints import write
from ggufs import Tensor
from ggufs import gguf as gguf_file

from volta_runtime.checkpoint import inspect

ROWS = 16
WORDS = {f"w{n}": n for n in range(12)}
ADDED = [{"id": 12, "content": "<s>"}, {"id": 13, "content": "</s>"}]
SOUND = {"model": {"type": "BPE", "vocab": WORDS, "merges": []}, "added_tokens": ADDED}
CHAT = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}</s>{% endfor %}"


@pytest.fixture
def read(tmp_path):
    """Write a model with these files; return its tokenizer, and level and message of its faults."""

    def read(config=None, rows=ROWS, **files):
        given = {
            "tokenizer.json": SOUND,
            "tokenizer_config.json": {"chat_template": CHAT, "eos_token": "</s>"},
            **{name.replace("__", "."): held for name, held in files.items()},
        }
        path = write(
            tmp_path / "m",
            {"model.embed_tokens.weight": ("F16", (rows, 8))},
            {"vocab_size": ROWS} | (config or {}),
            files={name: held for name, held in given.items() if held is not None},
        )
        checkpoint = inspect(path)
        own = ("tokenizer-vocab", "chat-template", "config-json", "lfs-pointer")
        return checkpoint.tokenizer, [
            (fault.level, fault.message) for fault in checkpoint.faults if fault.check in own
        ]

    return read


def test_a_sound_one_has_no_faults(read):
    tokenizer, faults = read({"eos_token_id": [13], "bos_token_id": 12})
    assert faults == []
    assert (tokenizer.vocabulary.size, tokenizer.vocabulary.words, tokenizer.rows) == (14, 12, 16)
    assert tokenizer.template.file.name == "tokenizer_config.json"


def test_what_the_library_writes_is_read_as_it_counts(read, tmp_path):
    own = tokenizers.Tokenizer(tokenizers.models.BPE(WORDS, []))
    own.add_special_tokens(["<s>", "</s>"])
    own.save(str(tmp_path / "t.json"))
    tokenizer, faults = read(tokenizer__json=(tmp_path / "t.json").read_text())
    assert faults == []
    assert tokenizer.vocabulary.size == own.get_vocab_size(with_added_tokens=True) == 14
    assert tokenizer.vocabulary.added == {"<s>": 12, "</s>": 13}


def more(*added, words=WORDS):
    return {"model": {"vocab": words}, "added_tokens": [*ADDED, *added]}


FAULTS = {
    "words beyond the rows": (
        {"tokenizer__json": more(words={f"w{n}": n for n in range(20)})},
        ("fail", "the tokenizer has 20 tokens, the embedding 16 rows"),
    ),
    "a token of every chat beyond them": (
        {
            "tokenizer__json": {
                "model": {"vocab": WORDS},
                "added_tokens": [{"id": 99, "content": "</s>"}],
            }
        },
        ("fail", "added tokens have no row among the embedding's 16: </s>; chats"),
    ),
    "a token of some prompts beyond them": (
        {"tokenizer__json": more({"id": 16, "content": "<image>"})},
        ("warn", "added tokens have no row among the embedding's 16: <image>; a prompt"),
    ),
    "a token that the config adds": (
        {
            "tokenizer_config__json": {
                "chat_template": CHAT,
                "added_tokens_decoder": {"16": {"content": "<image>"}, "x": {}, "1": 7},
            }
        },
        ("warn", "added tokens have no row"),
    ),
    "fewer rows than vocab_size": (
        {"config": {"vocab_size": 32}},
        ("fail", "vocab_size is 32 and the embedding has 16 rows"),
    ),
    "many more rows than vocab_size": (
        {"rows": 2048},
        ("warn", "vocab_size is 16 and the embedding has 2,048 rows"),
    ),
    "an ending beyond the rows": (
        {"generation_config__json": {"eos_token_id": [13, 16]}},
        ("fail", "eos_token_id is 16, where ids go from 0 to 15"),
    ),
    "a beginning of text": (
        {"config": {"bos_token_id": "<s>"}},
        ("fail", "bos_token_id is '<s>', where ids go from 0 to 15"),
    ),
    "an ending in text_config": (
        {"config": {"text_config": {"eos_token_id": -1}}},
        ("fail", "eos_token_id is -1, where"),
    ),
    "no JSON": (
        {"tokenizer__json": "{"},
        ("fail", "tokenizer.json is not sound: Input data was truncated"),
    ),
    "no vocabulary": (
        {"tokenizer__json": {"model": {}}},
        ("fail", "tokenizer.json is not sound: Object missing required field `vocab`"),
    ),
    "a vocabulary of text": (
        {"tokenizer__json": {"model": {"vocab": {"a": "b"}}}},
        ("fail", "tokenizer.json is not sound: Expected `int`"),
    ),
    "none": (
        {"tokenizer__json": None},
        ("warn", "no tokenizer lies beside the weights"),
    ),
    "no template": (
        {"tokenizer_config__json": {}},
        ("warn", "there is no chat template: /v1/chat/completions refuses every request"),
    ),
    "a broken template": (
        {"chat_template__jinja": "line one\n{% for m in messages %}"},
        ("fail", "the chat template is broken in its line 2: Unexpected end of template"),
    ),
    "a template that nests without end": (
        {"chat_template__jinja": "{{" + "(" * 9999},
        ("fail", "the chat template nests too deep"),
    ),
    "a template with a number too long to read": (
        {"chat_template__jinja": "{{" + "9" * 5000 + "}}"},
        ("fail", "the chat template is broken: "),
    ),
    "a vocabulary without end": (
        {"tokenizer__json": "[" * 6_000_001},
        ("fail", "tokenizer.json is not sound: 6,000,001 values, where there can be up to"),
    ),
    "a template of a number": (
        {"tokenizer_config__json": {"chat_template": 7}},
        ("fail", "chat_template is no text and no list of named ones"),
    ),
}


@pytest.mark.parametrize(("given", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(read, given, expected):
    level, message = expected
    _, faults = read(**given)
    assert [(own, text[: len(message)]) for own, text in faults] == [(level, message)]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"chat_template__jinja": "file"}, "file"),
        (
            {"tokenizer_config__json": {"chat_template": [{"name": "default", "template": "x"}]}},
            "x",
        ),
        (
            {"tokenizer_config__json": {"chat_template": [{"name": [], "template": "y"}]}},
            "y",
        ),
        (
            {"tokenizer_config__json": {}, "chat_template__json": {"chat_template": "old"}},
            "old",
        ),
    ],
)
def test_templates_are_found_where_engines_look(read, files, text):
    tokenizer, faults = read(**files)
    assert faults == []
    assert tokenizer.template.text == text


def test_a_template_in_another_encoding_is_named(read, tmp_path):
    read(chat_template__jinja="")
    (tmp_path / "m" / "chat_template.jinja").write_bytes(b"\xff")
    faults = [fault.message for fault in inspect(tmp_path / "m").faults]
    assert any("cannot be read: 'utf-8' codec" in message for message in faults)


def test_rows_are_padded(read):
    assert read(rows=64)[1] == []


def sentencepiece(count):
    """A ModelProto of pieces {text, score} and a trainer_spec."""
    piece = b"\x0a\x02ab" + b"\x15" + bytes(4)
    return (b"\x0a" + bytes([len(piece)]) + piece) * count + b"\x12\x02\x08\x01"


def test_tokenizers_of_sentencepiece_are_counted(read, tmp_path):
    read(tokenizer__json=None)
    file = tmp_path / "m" / "tokenizer.model"
    file.write_bytes(sentencepiece(300))
    checkpoint = inspect(tmp_path / "m")
    assert checkpoint.tokenizer.vocabulary.words == 300
    assert "the tokenizer has 300 tokens, the embedding 16 rows" in [
        fault.message for fault in checkpoint.faults
    ]
    file.write_bytes(sentencepiece(300)[:-1])
    assert any("cut off" in fault.message for fault in inspect(tmp_path / "m").faults)


def test_unigram_lists_its_words(read):
    tokenizer, faults = read(
        tokenizer__json={"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", -2]]}}
    )
    assert (tokenizer.vocabulary.size, faults) == (2, [])


@pytest.mark.parametrize(
    ("tokens", "eos", "messages"),
    [
        (16, 1, []),
        (15, 1, ["the tokenizer has 15 tokens, the embedding 16 rows"]),
        (16, 16, ["tokenizer.ggml.eos_token_id is 16, where ids go from 0 to 15"]),
    ],
)
def test_a_gguf_has_its_own(tmp_path, tokens, eos, messages):
    pairs = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": [f"w{n}" for n in range(tokens)],
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.chat_template": CHAT,
    }
    kind = gguf.GGMLQuantizationType.F32
    tensors = {"token_embd.weight": Tensor(kind, (8, 16), 512)}
    (tmp_path / "m.gguf").write_bytes(gguf_file(pairs, tensors))
    checkpoint = inspect(tmp_path / "m.gguf")
    assert checkpoint.tokenizer.template.text == CHAT
    own = [fault for fault in checkpoint.faults if fault.check == "tokenizer-vocab"]
    assert [fault.message for fault in own] == messages


def test_a_vocabulary_of_many_words_is_read_in_a_moment(read):
    """As large as the largest; the merges are skipped."""
    count = 262_144
    words = {f"\u0120word{n}": n for n in range(count)}
    merges = [[f"wo{n}", f"rd{n}"] for n in range(count)]
    held = json.dumps({"model": {"vocab": words, "merges": merges}, "added_tokens": ADDED})
    assert len(held) > 12e6
    started = time.process_time()
    tokenizer, _ = read(rows=count, config={"vocab_size": count}, tokenizer__json=held)
    assert tokenizer.vocabulary.words == count
    assert time.process_time() - started < 2
