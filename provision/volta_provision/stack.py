"""The intent: stack.yaml, read strictly."""

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from volta_provision.errors import StackError

Profile = Literal["cpu", "v100"]


class Serve(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Flags of `volta-serve serve`; the names are vLLM's."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    max_model_len: Annotated[int, msgspec.Meta(ge=16)] = 2048
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4


class Stack(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One stack.yaml: what to serve, and on which class of host."""

    model: str
    profile: Literal["auto", "cpu", "v100"] = "auto"
    engine: Literal["embedded"] = "embedded"
    serve: Serve = Serve()


class Model(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A row of models.yaml: a GGUF file inside a package, and the checkpoint made of it."""

    name: str
    package: str
    sha256: str
    member: str


def read_yaml(path: Path, kind: Any) -> Any:
    """Decode the YAML file into `kind`; raises StackError naming the file and the field."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise StackError(f"{path}: no such file") from error
    except msgspec.ValidationError as error:
        raise StackError(f"{path}: {_explain(str(error), kind)}") from error
    except Exception as error:  # PyYAML's own errors carry the line and the column
        raise StackError(f"{path}: not readable as YAML: {error}") from error


def read_stack(path: Path) -> Stack:
    """Read stack.yaml; raises StackError for an unknown key, a bad value or an unknown model."""
    stack: Stack = read_yaml(path, Stack)
    models = read_models()
    if stack.model not in models:
        raise StackError(
            f"{path}: model: {stack.model!r} is unknown"
            f"{_suggest(stack.model, models)}; known: {', '.join(models)}"
        )
    return stack


def read_models() -> dict[str, Model]:
    """Return the models that a stack can name."""
    table: dict[str, Model] = read_yaml(Path(__file__).with_name("models.yaml"), dict[str, Model])
    return table


def _explain(message: str, kind: Any) -> str:
    """Turn msgspec's sentence into `field: what is wrong, what is allowed`."""
    unknown = re.match(r"Object contains unknown field `(.+?)`(?: - at `\$\.(.+)`)?", message)
    if not unknown:
        where = re.match(r"(.+) - at `\$\.?(.*)`$", message)
        return f"{where[2]}: {where[1]}" if where and where[2] else message
    key, parent = unknown[1], unknown[2]
    owner = Serve if parent == "serve" else kind
    known = getattr(owner, "__struct_fields__", ())
    path = f"{parent}.{key}" if parent else key
    return f"unknown key {path!r}{_suggest(key, known)}; known here: {', '.join(known)}"


def _suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
