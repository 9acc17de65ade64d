"""A checkpoint's tokenizer, held against its embedding and its configs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.contents import CONFIG, Contents
from volta_runtime.checkpoint.faults import Fault, Level, few
from volta_runtime.checkpoint.gguf import LongArray
from volta_runtime.checkpoint.template import Template, read_template
from volta_runtime.checkpoint.vocabulary import Vocabulary, added_by_config, read_vocabulary

_CHECK = "tokenizer-vocab"
_CONFIG = "tokenizer_config.json"
_GENERATION = "generation_config.json"
# Tokenizers that engines know and that are not read here.
_OTHERS = ("tekken.json", "tiktoken.model", "spiece.model", ".tiktoken")
_EMBEDDINGS = (
    "embed_tokens.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embeddings.weight",
    "embed_in.weight",
    "wte.weight",
    "token_embd.weight",
)
_ELSEWHERE = ("vis", "audio", "mtp.", "draft")  # towers and heads with embeddings of their own
_PADDED = 8  # the least multiple that rows are padded to
_NAMED = 5  # ids of one entry that are told


@dataclass(frozen=True)
class Tokenizer:
    """vocabulary: None where no file lists it that is read here; other: the file that does then.

    rows: of the embedding, None where no header tells. template: the chat template, None where
    there is none that is sound.
    """

    vocabulary: Vocabulary | None = None
    other: str = ""
    rows: int | None = None
    template: Template | None = None


def read_tokenizer(
    contents: Contents, architecture: Architecture
) -> tuple[Tokenizer, tuple[Fault, ...]]:
    """Read the tokenizer of a checkpoint, and what is wrong with it.

    A file of weights alone has none, and so has what has none.
    """
    vocab_size = architecture.vocab_size
    if contents.kind == "none" or (contents.kind != "gguf" and not contents.path.is_dir()):
        return Tokenizer(), ()
    faults: list[Fault] = []
    names = {file.name for file in contents.files}
    vocabulary, other = None, ""
    if contents.kind == "gguf":
        vocabulary = _of_gguf(contents)
    else:
        try:
            vocabulary = read_vocabulary(contents.path, names)
        except ValueError as error:
            faults.append(Fault(_CHECK, str(error), contents.path))
        other = next((name for name in sorted(names) if name.endswith(_OTHERS)), "")
    if vocabulary is None and not other and not faults and contents.kind != "index":
        words = "no tokenizer lies beside the weights: engines take one by --tokenizer"
        faults.append(Fault(_CHECK, words, contents.path, expected="tokenizer.json", level="warn"))
    template, fault = read_template(contents, architecture)
    faults += [fault] if fault else []
    tokenizer = Tokenizer(vocabulary, other, _rows(contents), template)
    faults += _size_faults(tokenizer, contents, vocab_size)
    faults += _special_faults(tokenizer, contents, vocab_size)
    return tokenizer, tuple(faults)


def _rows(contents: Contents) -> int | None:
    """How many tokens the embedding has a row for."""
    found = [
        info.shape[0]
        for name, info in contents.tensors.items()
        if name.endswith(_EMBEDDINGS)
        and len(info.shape) == 2
        and (name in _EMBEDDINGS or name.endswith(tuple(f".{end}" for end in _EMBEDDINGS)))
        and not any(word in name for word in _ELSEWHERE)
    ]
    return max(found, default=None)


def _of_gguf(contents: Contents) -> Vocabulary | None:
    tokens = contents.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray):
        return Vocabulary(contents.path, tokens.count)
    return Vocabulary(contents.path, len(tokens)) if isinstance(tokens, list) else None


def _size_faults(
    tokenizer: Tokenizer, contents: Contents, vocab_size: int | None
) -> Iterator[Fault]:
    """Where tokens lie beyond the embedding, or the embedding is of another size than told."""
    rows, vocabulary = tokenizer.rows, tokenizer.vocabulary
    config = contents.path / CONFIG
    if rows is not None and vocab_size is not None and rows != vocab_size:
        padded = rows > vocab_size and rows % _PADDED == 0 and rows - vocab_size < 1024
        if not padded:
            words = f"vocab_size is {vocab_size:,} and the embedding has {rows:,} rows"
            level: Level = "fail" if rows < vocab_size else "warn"
            sides = f"{rows:,} rows", f"vocab_size {vocab_size:,}"
            yield Fault(_CHECK, words, config, "", *sides, level)
    limit = vocab_size if rows is None else rows
    if vocabulary is None or limit is None:
        return
    sides = f"ids below {limit:,}", f"ids up to {vocabulary.size - 1:,}"
    if vocabulary.words > limit or (contents.kind == "gguf" and vocabulary.words != limit):
        words = f"the tokenizer has {vocabulary.words:,} tokens, the embedding {limit:,} rows"
        yield Fault(_CHECK, words, vocabulary.file, "", *sides)
        return
    added = {**added_by_config(contents.configs.get(_CONFIG, {})), **vocabulary.added}
    beyond = [text for text, number in added.items() if number >= limit]
    if beyond:
        used = _used(beyond, tokenizer, contents)
        words = f"added tokens have no row among the embedding's {limit:,}: {few(used or beyond)}"
        words += "; chats and endings need them" if used else "; a prompt with one of them fails"
        sides = f"ids below {limit:,}", f"ids up to {max(added.values()):,}"
        yield Fault(_CHECK, words, vocabulary.file, "", *sides, "fail" if used else "warn")


def _used(tokens: Iterable[str], tokenizer: Tokenizer, contents: Contents) -> list[str]:
    """Those of these tokens that every conversation has."""
    config = contents.configs.get(_CONFIG, {})
    named = [config.get(key) for key in ("bos_token", "eos_token")]
    named += [token.get("content") for token in named if isinstance(token, dict)]
    template = tokenizer.template.text if tokenizer.template else ""
    return [token for token in tokens if token in named or token in template]


def _special_faults(
    tokenizer: Tokenizer, contents: Contents, vocab_size: int | None
) -> Iterator[Fault]:
    """Tokens that begin or end a text and that the model cannot tell."""
    own = tokenizer.vocabulary.size if tokenizer.vocabulary else None
    limit = tokenizer.rows or vocab_size or own
    if limit is None:
        return
    for file, key, value in _specials(contents):
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        for number in numbers[:_NAMED]:
            if type(number) is not int or not 0 <= number < limit:
                words = f"{key} is {number!r}, where ids go from 0 to {limit - 1:,}"
                where = contents.path / file if file else contents.path
                yield Fault(_CHECK, words, where, "", f"below {limit:,}", repr(number))


def _specials(contents: Contents) -> Iterator[tuple[str, str, Any]]:
    if contents.kind == "gguf":
        for word in ("bos", "eos", "eot"):
            key = f"tokenizer.ggml.{word}_token_id"
            yield "", key, contents.metadata.get(key)
        return
    for file in (CONFIG, _GENERATION):
        config: Mapping[str, Any] = contents.configs.get(file, {})
        inner = config.get("text_config")
        for holder in (config, inner if isinstance(inner, dict) else {}):
            for key in ("bos_token_id", "eos_token_id"):
                yield file, key, holder.get(key)
