"""What a user means by MODEL: a checkpoint on this machine, or how to get one."""

import re
from pathlib import Path

from volta_doctor.facts.release import install_root
from volta_doctor.probe import Probe
from volta_provision.errors import StackError
from volta_provision.stack import read_models

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class NotHereError(StackError):
    """A model that is known and not on this machine: nothing can be told of it."""


def find_model(name: str) -> Path:
    """Return the directory or the GGUF file that is meant.

    Raises StackError for a name that means nothing, NotHereError for a model of models.yaml that
    is not installed; each says how to get it.
    """
    path = Path(name)
    try:
        if path.exists():
            return path
    except PermissionError:  # it may be there: who looks at it tells
        return path
    except OSError as error:
        raise StackError(f"{name}: {error.strerror}") from error
    models = read_models()
    if name in models:
        installed = Path(install_root(Probe())) / "models" / models[name].name
        if installed.is_dir():
            return installed
        raise NotHereError(
            f"{name} is not installed: {installed} is not there; `./volta up` with `model: {name}`"
            " in stack.yaml fetches and converts it"
        )
    if _HUB_ID.fullmatch(name):
        directory = name.rpartition("/")[2]
        raise StackError(
            f"{name}: no such directory; if it is a model of Hugging Face, fetch its small files"
            f" and plan for these: hf download {name} --include '*.json' --local-dir {directory}"
        )
    raise StackError(
        f"{name}: no such file or directory; MODEL is a checkpoint's directory, a GGUF file, or one"
        f" of models.yaml: {', '.join(models)}"
    )
