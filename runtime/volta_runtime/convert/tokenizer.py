"""Rebuilds the Hugging Face tokenizer from a GGUF's vocabulary, merges and token types."""

import json
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from volta_runtime.convert.errors import ConvertError
from volta_runtime.convert.source import GGUFSource

# tokenizer.ggml.pre: how text is cut before the merges. llama.cpp's `smollm` isolates every
# \p{N} code point, then applies the regular expression of GPT-2, which ByteLevel holds.
PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    ),
}


def write_tokenizer(source: GGUFSource, directory: Path) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json; returns the special ids for config.json.

    Raises ConvertError naming a tokenizer model or pre-tokenizer that has no row.
    """
    _refuse_unknown(source)
    tokens: list[str] = source.require("tokenizer.ggml.tokens")
    types: list[int] = source.require("tokenizer.ggml.token_type")
    merges: list[str] = source.require("tokenizer.ggml.merges")
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ConvertError(
            f"{source.path}: {len(tokens)} tokens ({len(set(tokens))} distinct) with {len(types)}"
            " token types; the vocabulary is damaged, download it again"
        )
    if others := set(types) - {TokenType.NORMAL, TokenType.CONTROL}:
        names = ", ".join(f"{kind} ({TokenType(kind).name})" for kind in sorted(others))
        raise ConvertError(
            f"{source.path}: tokenizer.ggml.token_type holds {names}, not supported by this"
            " version; supported: NORMAL and CONTROL"
        )
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)
    except Exception as error:  # the library raises bare Exception
        raise ConvertError(f"{source.path}: tokenizer.ggml.merges: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[source.require("tokenizer.ggml.pre")]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")

    ids = _special_ids(source, len(tokens))
    config: dict[str, Any] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        **{f"{role}_token": tokens[index] for role, index in ids.items()},
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.require(
            f"{source.require('general.architecture')}.context_length"
        ),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if template := source.get("tokenizer.chat_template"):
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return {f"{role}_token_id": index for role, index in ids.items() if role != "unk"}


def _refuse_unknown(source: GGUFSource) -> None:
    for key, supported in (
        ("tokenizer.ggml.model", {"gpt2"}),
        ("tokenizer.ggml.pre", PRE_TOKENIZERS.keys()),
    ):
        if (value := source.require(key)) not in supported:
            raise ConvertError(
                f"{source.path}: {key} {value!r} is not supported by this version;"
                f" supported: {', '.join(supported)}"
            )
    if source.get("tokenizer.ggml.add_bos_token"):
        raise ConvertError(
            f"{source.path}: tokenizer.ggml.add_bos_token is set; tokenizers that put a token"
            " before every text are not supported by this version"
        )


def _special_ids(source: GGUFSource, size: int) -> dict[str, int]:
    """Ids by Hugging Face role, of the roles that the file fills."""
    ids: dict[str, int] = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        index = source.get(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            continue
        if index >= size:
            raise ConvertError(
                f"{source.path}: tokenizer.ggml.{key}_token_id is {index}, but the vocabulary"
                f" has {size} tokens; download another build"
            )
        ids[role] = index
    return ids
