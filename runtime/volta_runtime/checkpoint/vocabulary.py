"""The tokens of a checkpoint, from whichever file lists them: how many, and which were added."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from volta_runtime.checkpoint.files import opened, too_many

_BYTES = 128 << 20  # of a file; the longest known has 33 MB
_VALUES = 6_000_000  # of one in JSON, thrice what that one has
_FIELDS = 1 << 21  # of a protobuf message; the longest known has 2^18 pieces


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer tells of its tokens.

    file: the one that lists them. words: how many ids its model has, from 0 to the highest. added:
    the ids of the tokens beside these, by their text.
    """

    file: Path
    words: int
    added: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many ids there are, from 0 to the highest of all."""
        return max([self.words, *(number + 1 for number in self.added.values())])


def read_vocabulary(directory: Path, names: Collection[str]) -> Vocabulary | None:
    """Read the first of the files that are known, of which most models have one.

    None where there is none, or only forms that are not read here. Raises ValueError, whose text
    begins with the file's name and says what is wrong with it.
    """
    for name, read in _READERS.items():
        if name not in names:
            continue
        file = directory / name
        try:
            with opened(file) as (stream, size):
                if size > _BYTES:
                    raise ValueError(f"{size:,} bytes, more than {_BYTES:,}")
                words, added = read(stream.read(_BYTES))
        except OSError as error:
            raise ValueError(f"{name} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} is not sound: {error}") from error
        return Vocabulary(file, words, added)
    return None


_T = TypeVar("_T")
_Id = int  # of a token


class _Added(msgspec.Struct):
    id: _Id
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, _Id] | list[tuple[str, float]]


class _Tokenizer(msgspec.Struct):
    """tokenizer.json of the tokenizers library; vocab is a list in Unigram models."""

    model: _Model
    added_tokens: list[_Added] = []


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    if words := too_many(raw, _VALUES):
        raise ValueError(words)
    return msgspec.json.decode(raw, type=kind)


def _tokenizers(raw: bytes) -> tuple[int, dict[str, int]]:
    whole = _decoded(raw, _Tokenizer)
    added = {token.content: token.id for token in whole.added_tokens}
    vocab = whole.model.vocab
    if isinstance(vocab, list):
        return len(vocab), added
    # Some writers list the added tokens in the model's own vocabulary too.
    own = (number for text, number in vocab.items() if text not in added)
    return max(own, default=-1) + 1, added


def _words(raw: bytes) -> tuple[int, dict[str, int]]:
    """vocab.json of GPT-2's kind."""
    return max(_decoded(raw, dict[str, int]).values(), default=-1) + 1, {}


def _sentencepiece(raw: bytes) -> tuple[int, dict[str, int]]:
    """tokenizer.model: a protobuf message whose field 1 repeats, once for each piece."""
    return sum(number == 1 for number in _fields(raw)), {}


def _fields(raw: bytes) -> Iterator[int]:
    """The numbers of a protobuf message's fields (protobuf.dev/programming-guides/encoding)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(raw):
                raise ValueError("it is cut off")
            value |= (raw[at] & 127) << shift
            at += 1
            if not raw[at - 1] & 128:
                return value
        raise ValueError("no protobuf message")

    for _ in range(_FIELDS):
        if at >= len(raw):
            break
        tag = varint()
        if tag & 7 == 0:
            varint()
        elif tag & 7 == 2:
            length = varint()  # which moves `at` too
            at += length
        elif tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
        else:
            raise ValueError("no protobuf message, so no SentencePiece model")
        yield tag >> 3
    if at != len(raw):
        raise ValueError("it is cut off" if at > len(raw) else f"more than {_FIELDS:,} fields")


_READERS: Mapping[str, Callable[[bytes], tuple[int, dict[str, int]]]] = {
    "tokenizer.json": _tokenizers,
    "tokenizer.model": _sentencepiece,
    "vocab.json": _words,
}


def added_by_config(config: Mapping[str, Any]) -> dict[str, int]:
    """The tokens that tokenizer_config.json adds (added_tokens_decoder), those that are sound."""
    listed = config.get("added_tokens_decoder")
    return {
        token["content"]: int(number)
        for number, token in (listed.items() if isinstance(listed, dict) else ())
        if isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and number.isascii()
        and number.isdecimal()
        and len(number) < 10
    }
