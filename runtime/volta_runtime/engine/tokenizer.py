"""Text to tokens and back, read from the checkpoint's tokenizer files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from volta_runtime.engine.chat import ChatTemplate
from volta_runtime.engine.text import TextStream
from volta_runtime.errors import ModelError


class Tokenizer:
    """The vocabulary, the chat template and the end-of-sequence tokens of a checkpoint."""

    def __init__(self, directory: Path) -> None:
        file = directory / "tokenizer.json"
        try:
            self._raw = RawTokenizer.from_file(str(file))
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"{file}: cannot read the tokenizer: {error}") from None
        self._raw.no_truncation()
        self._raw.no_padding()
        vocabulary = self._raw.get_vocab(with_added_tokens=True)
        self.max_id = max(vocabulary.values(), default=-1)
        self.longest_token = max(map(len, vocabulary), default=1)  # characters
        config = _read_json(directory / "tokenizer_config.json")
        self.chat_template = _chat_template(directory, config)
        self.eos_token_ids = _eos_token_ids(directory)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; pass False for a rendered chat, which holds its special tokens already."""
        # Unlike encode(), this leaves Python's lock while it works.
        (encoding,) = self._raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of a whole sequence, without special tokens."""
        text: str = self._raw.decode(ids)
        return text

    def stream(self, stop: tuple[str, ...] = ()) -> TextStream:
        """An incremental decoder for one sequence."""
        return TextStream(self._raw, stop)


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object, empty when the file is absent."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file}: not a JSON object")
    return value


def _chat_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """chat_template.jinja if present, else `chat_template` of tokenizer_config.json."""
    file = directory / "chat_template.jinja"
    try:
        source = file.read_text(encoding="utf-8") if file.exists() else config.get("chat_template")
        if isinstance(source, list):  # several named templates
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        special = {
            name: token["content"] if isinstance(token, dict) else token
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
            if (token := config.get(name)) is not None
        }
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file}: cannot read: {error}") from None
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{directory}/tokenizer_config.json: chat_template or a special token is malformed "
            f"({error!r}); fetch it again"
        ) from None
    return None if source is None else ChatTemplate(source, special)


def _eos_token_ids(directory: Path) -> frozenset[int]:
    """generation_config.json lists every token that ends an answer; config.json at least one."""
    for name in ("generation_config.json", "config.json"):
        eos = _read_json(directory / name).get("eos_token_id")
        if eos is None:
            continue
        ids = eos if isinstance(eos, list) else [eos]
        if not all(type(token) is int for token in ids):
            raise ModelError(
                f"{directory / name}: eos_token_id is {eos!r}, expected a token id or several"
            )
        return frozenset(ids)
    return frozenset()
