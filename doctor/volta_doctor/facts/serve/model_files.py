"""Where a model's files lie: a directory, or a snapshot in the cache of Hugging Face's hub."""

import posixpath
import re

from volta_doctor.probe import Probe


def find(
    probe: Probe,
    model: str,
    revision: str | None,
    env: dict[str, str],
    home: str | None,
    directory: str | None,
    root: str = "",
) -> str | None:
    """Return the directory of a model given as `--model` takes it, None where it is not here.

    `directory` is the server's working directory, `root` stands before its paths where it has a
    file system of its own.
    """
    local = posixpath.normpath(posixpath.join(directory or "/", model))
    if probe.exists(root + local):
        is_directory = probe.path(root + local).is_dir()
        return root + local if is_directory else None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return None
    repository = f"{root}{hub_cache(env, home)}/models--{model.replace('/', '--')}"
    name = revision or "main"
    commit = probe.text_or_none(f"{repository}/refs/{name}")
    snapshot = f"{repository}/snapshots/{(commit or name).strip()}"
    return snapshot if probe.exists(snapshot) else None


def hub_cache(env: dict[str, str], home: str | None) -> str:
    """Return the hub's cache directory (huggingface_hub, "Environment variables")."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return env[name]
    if env.get("HF_HOME"):
        return f"{env['HF_HOME']}/hub"
    caches = env.get("XDG_CACHE_HOME") or f"{home or ''}/.cache"
    return f"{caches}/huggingface/hub"
