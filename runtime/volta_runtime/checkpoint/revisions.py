"""Whether all files of a directory are of one revision of the model."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from volta_runtime.checkpoint.faults import Fault, Level
from volta_runtime.checkpoint.files import opened
from volta_runtime.checkpoint.index import SHARD

_CHECK = "shard-mixed-revisions"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")


def revision_faults(
    directory: Path, names: Collection[str], weights: Collection[str], index: Collection[str]
) -> Iterator[Fault]:
    """Where totals in the shards' names differ, or the commits that files came from.

    names: of all files. weights: those that say what the weights are. index: shards that the index
    names.
    """
    yield from _totals(directory, names, index)
    commits = {name: commit for name in names if (commit := _commit(directory, name))}
    of_weights = {name: commits[name] for name in weights if name in commits}
    if len(set(of_weights.values())) > 1:
        yield _mixed(directory, "the weights", of_weights, "fail")
    elif len(set(commits.values())) > 1:
        yield _mixed(directory, "the files", commits, "warn")


def _totals(directory: Path, names: Collection[str], index: Collection[str]) -> Iterator[Fault]:
    """Shards whose names tell of differing numbers of shards."""
    used, there = _by_stem(index or names), _by_stem(names)
    for stem, totals in {**there, **used}.items():
        level: Level = "fail" if len(used.get(stem, ())) > 1 else "warn"
        totals = totals | there.get(stem, set())
        if len(totals) > 1:
            told = " and ".join(f"of {total}" for total in sorted(totals))
            words = f"shards {stem}-* are numbered {told}: they are of two revisions"
            words += ", of which the index names one" if level == "warn" else ""
            yield Fault(_CHECK, words, directory, "", "one total", told, level)


def _by_stem(names: Iterable[str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name in names:
        match = SHARD.fullmatch(name)
        if match and match["suffix"] == ".safetensors":
            found.setdefault(match["stem"], set()).add(int(match["total"]))
    return found


def _commit(directory: Path, name: str) -> str:
    """The commit that a file came from, as huggingface_hub notes it; or empty.

    It keeps a note beside files of a local directory (_local_folder.py), and in its cache has a
    directory for each commit, whose files link elsewhere.
    """
    try:
        note = directory / ".cache" / "huggingface" / "download" / f"{name}.metadata"
        with opened(note) as (stream, _):
            line = stream.readline(64).decode("ascii", errors="replace").strip()
            if _COMMIT.fullmatch(line):
                return line
    except OSError:
        pass
    path = directory.absolute() / name
    try:
        linked = _SNAPSHOT.search(os.path.normpath(path.parent / path.readlink()))
    except OSError:  # no link
        linked = None
    match = linked or _SNAPSHOT.search(str(path))
    return match[1] if match else ""


def _mixed(directory: Path, what: str, commits: Mapping[str, str], level: Level) -> Fault:
    by_commit: dict[str, list[str]] = {}
    for name, commit in sorted(commits.items()):
        by_commit.setdefault(commit, []).append(name)
    told = ", ".join(
        f"{commit[:12]} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for commit, names in by_commit.items()
    )
    words = f"{what} come from {len(by_commit)} commits: {told}"
    sides = "one commit", ", ".join(commit[:12] for commit in by_commit)
    return Fault(_CHECK, words, directory, "", *sides, level)
