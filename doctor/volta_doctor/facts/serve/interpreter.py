"""Which Python a command line runs, and the environment that it belongs to."""

import posixpath
import re

from volta_doctor.facts.serve.command_line import Command
from volta_doctor.probe import CannotLook, Probe

_SCRIPT_BYTES = 256


def find(
    probe: Probe, command: Command, env: dict[str, str], exe: str | None, root: str = ""
) -> tuple[str | None, str | None]:
    """Return interpreter and prefix of a command; (None, None) where it is no Python program.

    `exe` is the file that the process runs, where it runs; `root` stands before its paths where
    it has a file system of its own. An interpreter is named as it was started: a venv's is a link
    to the one that it was made from.
    """
    candidates = [_located(probe, word, env, root) for word in command.words[:2]]
    for path in filter(None, candidates):
        if is_python(path):
            return path, prefix_of(probe, path)
        if interpreter := _shebang(probe, path, env, root):
            return interpreter, prefix_of(probe, interpreter)
        beside = f"{posixpath.dirname(path)}/python"
        if _there(probe, beside) and environment_at(
            probe, posixpath.dirname(posixpath.dirname(path))
        ):
            return beside, prefix_of(probe, beside)
    if command.venv and _there(probe, f"{root}{command.venv}/bin/python"):
        python = f"{root}{command.venv}/bin/python"
        return python, prefix_of(probe, python)
    if exe and is_python(exe):
        return root + exe, prefix_of(probe, root + exe)
    return None, None


def is_python(path: str) -> bool:
    """Say whether a path's name is that of an interpreter."""
    return re.fullmatch(r"(?:python|pypy)[\d.]*", posixpath.basename(path)) is not None


def environment_at(probe: Probe, directory: str) -> bool:
    """Say whether a directory is a venv or a conda environment."""
    return probe.exists(f"{directory}/pyvenv.cfg") or probe.exists(f"{directory}/conda-meta")


def prefix_of(probe: Probe, python: str) -> str:
    """Return the environment of an interpreter: its venv, else the prefix of the program itself."""
    directory = posixpath.dirname(posixpath.dirname(python))
    if environment_at(probe, directory):
        return directory
    return posixpath.dirname(posixpath.dirname(probe.resolve(python)))


def _there(probe: Probe, path: str) -> bool:
    """Say whether a file is there; the target of a link may be so only for the server."""
    return probe.link(path) is not None or probe.exists(path)


def _located(probe: Probe, word: str, env: dict[str, str], root: str) -> str | None:
    """Return the path of a program as the server's own PATH finds it."""
    if word.startswith("/"):
        return root + word if _there(probe, root + word) else None
    if "/" in word or not re.match(r"[A-Za-z]", word):
        return None
    directories = [f"{env[name]}/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in env]
    directories += env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    paths = (f"{root}{directory}/{word}" for directory in directories if directory)
    return next((path for path in paths if _there(probe, path)), None)


def _shebang(probe: Probe, script: str, env: dict[str, str], root: str) -> str | None:
    """Return the interpreter in a script's first line.

    pip and uv write a shell script where the interpreter's path is too long or has blanks in it:
    its second line then names the interpreter.
    """
    try:
        with probe.open(script) as file:  # it may be a program of a gigabyte
            head = file.read(_SCRIPT_BYTES)
    except (CannotLook, OSError):
        return None
    if not head.startswith(b"#!"):
        return None
    for line in head.decode(errors="replace").splitlines()[:2]:
        for word in re.findall(r"[^\s'\"#!]+", line):
            path = _located(probe, word, env, root)
            if path and is_python(path):
                return path
    return None
