"""The chat template: where it stands, and whether its Jinja is sound. It is parsed, never run."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.files import opened
from volta_runtime.checkpoint.quantization.fields import brief

_CHECK = "chat-template"
_FILE = "chat_template.jinja"
_CONFIGS = ("tokenizer_config.json", "chat_template.json")
_KEY = "chat_template"
_GGUF_KEY = "tokenizer.chat_template"
_BYTES = 1 << 20  # the longest known has some 25,000


# Models that answer no messages, by model_type or GGUF's general.architecture: encoders, embedders,
# translators, speech and images.
_NO_CHAT = frozenset(
    (
        "albert", "bart", "bert", "big_bird", "blenderbot", "camembert", "canine", "clap", "clip",
        "data2vec_audio", "data2vec_text", "deberta", "deberta_v2", "distilbert", "electra",
        "ernie", "esm", "funnel", "hubert", "jina_bert_v2", "jina_bert_v3", "layoutlm",
        "layoutlmv3", "led", "longformer", "longt5", "m2m_100", "marian", "mbart", "mobilebert",
        "modernbert", "moonshine", "mpnet", "mt5", "musicgen", "mvp", "neo_bert", "nllb_moe",
        "nomic_bert", "nomic_bert_moe", "parakeet", "pegasus", "pegasus_x", "plbart", "prophetnet",
        "rembert", "roberta", "roformer", "seamless_m4t", "seamless_m4t_v2", "siglip", "siglip2",
        "speech_to_text", "speecht5", "squeezebert", "switch_transformers", "t5", "t5encoder",
        "umt5", "unispeech", "vit", "vits", "wav2vec2", "wav2vec2_bert", "wavlm", "whisper", "xlm",
        "xlm_roberta", "xlm_roberta_xl", "xmod",
    )
)  # fmt: skip
# Classes of transformers without a head that writes text; GLM's and InternVL's own have one.
_NO_HEAD = re.compile(
    r"(?!.*Chat)\w*(?:(?<!LMHead)Model|Encoder|ForMaskedLM|ForCTC|Classification|QuestionAnswering)"
)


def chats(architecture: Architecture) -> bool:
    """Whether it is a model of a kind that can be chatted with."""
    if architecture.names and all(map(_NO_HEAD.fullmatch, architecture.names)):
        return False
    return architecture.model_type.replace("-", "_") not in _NO_CHAT


@dataclass(frozen=True)
class Template:
    """The text of a chat template, and the file that it stands in."""

    text: str
    file: Path


def read_template(
    contents: Contents, architecture: Architecture
) -> tuple[Template | None, Fault | None]:
    """The template that engines take, in the order in which transformers looks for it.

    Without one that is sound, the fault why, or that of another one by name; none where the model
    is not downloaded yet.
    """
    try:
        held, file = _find(contents)
    except (OSError, UnicodeDecodeError) as error:
        words = f"cannot be read: {getattr(error, 'strerror', error)}"
        return None, Fault(_CHECK, words, contents.path / _FILE, expected="a text in UTF-8")
    if held is None:
        if contents.kind == "index" or not chats(architecture):
            return None, None
        words = "there is no chat template: /v1/chat/completions refuses every request"
        return None, Fault(_CHECK, words, file, expected=_FILE, level="warn")
    other = None
    if isinstance(held, list):  # several, by name
        named = {
            str(entry.get("name")): entry.get("template") for entry in held if type(entry) is dict
        }
        for name, text in named.items():
            problem = _problem(text) if isinstance(text, str) else "it is no text"
            if problem and name != "default":
                words = f"of the named templates {brief(name)} is broken: {problem}"
                other = Fault(_CHECK, words, file, "", "a template of Jinja", name[:60])
        held = named.get("default", next(iter(named.values()), held))
    if not isinstance(held, str):
        words = f"{_KEY} is no text and no list of named ones"
        return None, Fault(_CHECK, words, file, "", "a text", type(held).__name__)
    if problem := _problem(held):
        return None, Fault(_CHECK, problem, file, expected="a template of Jinja")
    return Template(held, file), other


def _find(contents: Contents) -> tuple[Any, Path]:
    """What stands in a template's place, and where. Raises OSError and UnicodeDecodeError."""
    if contents.kind == "gguf":
        return contents.metadata.get(_GGUF_KEY), contents.path
    if any(file.name == _FILE for file in contents.files):
        with opened(contents.path / _FILE) as (stream, _):
            return stream.read(_BYTES + 1).decode(), contents.path / _FILE
    for name in _CONFIGS:
        if held := contents.configs.get(name, {}).get(_KEY):
            return held, contents.path / name
    return None, contents.path


def _problem(text: str) -> str:
    """What is wrong with a template's syntax; empty where nothing is."""
    if len(text) > _BYTES:
        return f"the chat template has more than {_BYTES:,} characters"
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """Marks what the model wrote; transformers has it for training (chat_template_utils.py)."""

        tags = {"generation"}  # noqa: RUF012 - as the class above has it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        jinja2.Environment(extensions=[loopcontrols, Generation]).parse(text)  # noqa: S701
    except jinja2.TemplateSyntaxError as error:
        return f"the chat template is broken in its line {error.lineno}: {error.message}"
    except RecursionError:
        return "the chat template nests too deep"
    except ValueError as error:  # a number with more digits than Python reads
        return f"the chat template is broken: {error}"
    return ""
