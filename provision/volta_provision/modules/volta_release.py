#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""The releases on a host: what is there, which one is linked, and how one takes another's place."""

DOCUMENTATION = r"""
module: volta_release
short_description: List, unpack, link, roll back and prune the releases of a host
description:
  - A release is a directory of C(ROOT/releases) with a C(release.json), which is written last. What
    has none is what a killed run left.
  - C(ROOT/current) is a symbolic link to the release that is served. It is replaced by a rename, so
    that there is one at every moment.
  - C(ROOT/history) holds which release was linked when, one name a line, the newest last.
  - Every step can be killed at any moment; the same call then completes it.
options:
  root:
    description: The install root.
    type: path
    required: true
  state:
    description:
      - V(listed) changes nothing.
      - V(unpacked) makes C(releases/RELEASE) hold what O(archive) holds. A complete release is left
        alone.
      - V(current) links the release, which must be complete.
      - V(rolled_back) links the release that was linked before. With O(release), only where that
        one is linked now, so that a second call changes nothing.
      - V(pruned) removes incomplete releases and all but O(keep) complete ones.
    type: str
    choices: [listed, unpacked, current, rolled_back, pruned]
    default: listed
  release:
    description:
      - The release's directory name. Needed by V(unpacked) and V(current); V(pruned) leaves it
        alone.
    type: str
  archive:
    description: A tar on the host, of regular files and directories; needed by V(unpacked).
    type: path
  sha256:
    description: The digest that the archive must have.
    type: str
  keep:
    description:
      - How many complete releases stay. The one that is linked, the one before it and those that
        serve are always among them.
    type: int
    default: 3
  idle:
    description: Fail while processes of another run make a release or a model here, and name them.
    type: bool
    default: false
author: ["Volta (!UNKNOWN)"]
attributes:
  check_mode:
    description: Says what a run would change.
    support: full
  diff_mode:
    description: Shows the link and the releases before and after.
    support: full
"""
EXAMPLES = r"""
- name: See which releases are here
  volta_release:
    root: /opt/volta

- name: Switch to a release
  volta_release:
    root: /opt/volta
    state: current
    release: 0123456789ab

- name: Go back to the one before, unless that was done already
  volta_release:
    root: /opt/volta
    state: rolled_back
    release: 0123456789ab

- name: Keep the last three
  volta_release:
    root: /opt/volta
    state: pruned
"""
RETURN = r"""
releases:
  description: The names of the complete releases, oldest first.
  type: list
  elements: str
  returned: always
remains:
  description: The names of what killed runs left under releases.
  type: list
  elements: str
  returned: always
current:
  description: The name of the release that is linked, empty where there is none.
  type: str
  returned: always
before:
  description: The name of the release that V(rolled_back) would link, empty where there is none.
  type: str
  returned: always
serving:
  description: The names of the releases whose service runs; a killed run may leave the one before.
  type: list
  elements: str
  returned: always
busy:
  description: Processes of another run that make a release or a model here, as C(pid N (command)).
  type: list
  elements: str
  returned: always
removed:
  description: The names of what pruning removed.
  type: list
  elements: str
  returned: always
"""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

STATES = ("listed", "unpacked", "current", "rolled_back", "pruned")
HISTORY = 100  # lines; more switches back than anyone goes


class ReleaseError(Exception):
    """What was asked cannot be done; the message says why and what to do."""


class Releases(NamedTuple):
    """What is under an install root; the fields are those of RETURN."""

    releases: list[str]
    remains: list[str]
    current: str
    before: str


def look(root: Path) -> Releases:
    """Read what is there."""
    complete: list[tuple[float, str]] = []
    remains = []
    for path in sorted(root.glob("releases/*")):
        manifest = path / "release.json"
        if manifest.exists():
            complete.append((manifest.stat().st_mtime, path.name))
        else:
            remains.append(path.name)
    releases = [name for _made, name in sorted(complete)]
    link = root / "current"
    current = link.readlink().name if link.is_symlink() else ""
    past = [name for name in history(root, current) if name in releases and name != current]
    return Releases(releases, remains, current, past[-1] if past else "")


def history(root: Path, current: str) -> list[str]:
    """Return what was linked up to and with `current`, oldest first.

    What stands after it was never linked (the switch was killed), or was left by going back.
    """
    try:
        names = (root / "history").read_text().split()
    except FileNotFoundError:
        names = []
    if current in names:
        return names[: len(names) - names[::-1].index(current)]
    return [current] if current else []


def replace(path: Path, make: Callable[[Path], Any]) -> None:
    """Let `make` write a temporary name beside `path`, then rename it to `path`."""
    partial = path.with_name(f".{path.name}.new")
    if partial.is_symlink() or partial.exists():
        partial.unlink()
    make(partial)
    partial.replace(path)


def point(root: Path, release: str) -> None:
    """Let `current` be a link to the release. Going back is this alone."""
    replace(root / "current", lambda partial: partial.symlink_to(f"releases/{release}"))


def switch(root: Path, release: str) -> None:
    """Write the release to the history, then link it."""
    lines = [*history(root, look(root).current), release][-HISTORY:]
    replace(root / "history", lambda partial: partial.write_text("".join(f"{x}\n" for x in lines)))
    point(root, release)


def surplus(seen: Releases, serves: list[str], release: str, keep: int) -> list[str]:
    """Return what pruning removes: remains, then the oldest releases beyond `keep`."""
    fixed = {seen.current, seen.before, release, *serves}
    spare = [name for name in seen.releases if name not in fixed]
    places = max(keep - (len(seen.releases) - len(spare)), 0)
    remains = [name for name in seen.remains if name not in fixed]
    return remains + spare[: max(len(spare) - places, 0)]


def remove(path: Path) -> None:
    """Remove a release; its release.json goes first, so that the rest is known as remains."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    manifest = path / "release.json"
    if manifest.exists():
        manifest.unlink()
    shutil.rmtree(path)


def unpack(archive: Path, sha256: str, out: Path) -> None:
    """Make `out` hold what the archive holds, in place of what was there."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise ReleaseError(
            f"{archive}: its sha256 is {found}, not {sha256}: it was damaged on its way, so it is "
            "not unpacked; run again"
        )
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name, content = PurePosixPath(member.name), tar.extractfile(member)
            if content is None or name.is_absolute() or ".." in name.parts:
                raise ReleaseError(f"{archive}: {name} is no plain file within the release")
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content.read())
            (partial / name).chmod(member.mode & 0o777)
    if out.exists():
        shutil.rmtree(out)
    partial.replace(out)


def command(process: Path) -> list[str]:
    """Return the words of a /proc/PID's command, none where it is gone or not ours to read."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode(errors="replace") for word in words if word]


def release_processes(root: Path, proc: Path = Path("/proc")) -> list[tuple[int, list[str]]]:
    """Return (pid, command) of what runs by a release's own programs, as its Python."""
    found = [(int(process.name), command(process)) for process in proc.glob("[0-9]*")]
    mine = f"{root}/releases/"
    return sorted((pid, words) for pid, words in found if words and words[0].startswith(mine))


def makers(root: Path, proc: Path = Path("/proc")) -> list[str]:
    """Return the processes that make a release or a model.

    They name their release; what serves it or looks at it names `current`.
    """
    return [
        f"pid {pid} ({' '.join(words)[:120]})"
        for pid, words in release_processes(root, proc)
        if not any(word.startswith(f"{root}/current/") for word in words)
    ]


def serving(root: Path, proc: Path = Path("/proc")) -> list[str]:
    """Return the names of the releases whose service runs."""
    service = [f"{root}/current/venv/bin/volta-serve", "serve"]
    return sorted(
        {
            words[0].removeprefix(f"{root}/releases/").split("/")[0]
            for _pid, words in release_processes(root, proc)
            if words[1:3] == service
        }
    )


class Work(NamedTuple):
    """What a call has to do: one of the three, or nothing."""

    unpack: str = ""
    link: str = ""
    remove: tuple[str, ...] = ()


def plan(params: dict[str, Any], seen: Releases, serves: list[str]) -> Work:
    """Return what is left to do. Raises ReleaseError for what cannot be done."""
    where, release = f"{params['root']}/releases", params["release"] or ""
    if release and Path(release).name != release:
        raise ReleaseError(f"release: {release!r} is not the name of a directory in {where}")
    if params["state"] == "unpacked" and release not in seen.releases:
        return Work(unpack=release)
    if params["state"] == "current":
        if release not in seen.releases:
            raise ReleaseError(
                f"{where}/{release} is not complete (it has no release.json), so it is not linked; "
                f"complete here: {', '.join(seen.releases) or 'none'}"
            )
        return Work(link=release if release != seen.current else "")
    if params["state"] == "rolled_back" and release in ("", seen.current):
        if not seen.before:
            raise ReleaseError(
                f"{where} has no release to go back to: none was linked before "
                f"{seen.current or 'the first one'}, or it is not complete any more"
            )
        return Work(link=seen.before)
    if params["state"] == "pruned":
        return Work(remove=tuple(surplus(seen, serves, release, params["keep"])))
    return Work()


def perform(work: Work, params: dict[str, Any]) -> None:
    """Do it."""
    root = Path(params["root"])
    if work.unpack:
        unpack(Path(params["archive"]), params["sha256"], root / "releases" / work.unpack)
    if work.link:
        (point if params["state"] == "rolled_back" else switch)(root, work.link)
    for name in work.remove:
        remove(root / "releases" / name)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "str", "choices": list(STATES), "default": "listed"},
            "release": {"type": "str"},
            "archive": {"type": "path"},
            "sha256": {"type": "str"},
            "keep": {"type": "int", "default": 3},
            "idle": {"type": "bool", "default": False},
        },
        required_if=[
            ("state", "unpacked", ("release", "archive", "sha256")),
            ("state", "current", ("release",)),
        ],
        supports_check_mode=True,
    )
    os.umask(0o022)  # the service's own user reads what is made here
    root = Path(module.params["root"])
    seen, serves, busy = look(root), serving(root), makers(root)
    if busy and module.params["idle"]:
        module.fail_json(
            msg=f"another run is at work here: {'; '.join(busy)}: let it end, or end it", busy=busy
        )
    try:
        work = plan(module.params, seen, serves)
        if not module.check_mode:
            perform(work, module.params)
    except (ReleaseError, OSError, tarfile.TarError) as error:
        module.fail_json(msg=str(error))
    here = {*seen.releases, *seen.remains}
    there = (here | {work.unpack} - {""}) - set(work.remove)
    module.exit_json(
        changed=work != Work(),
        diff={
            "before": {"current": seen.current, "releases": sorted(here)},
            "after": {"current": work.link or seen.current, "releases": sorted(there)},
        },
        **(seen if module.check_mode else look(root))._asdict(),
        serving=serves,
        busy=busy,
        removed=list(work.remove),
    )


if __name__ == "__main__":
    main()
