#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Refuses a host on which a release could not be made or served, before anything is changed."""

DOCUMENTATION = r"""
module: volta_preflight
short_description: Check that a release fits on a host and its port is free
description:
  - Checks free disk space (unless the release is already complete) and the port.
  - Fails with every problem found, each with its remedy. Changes nothing.
  - Says what is already there, so that no later task has to look again.
options:
  root:
    description: The install root.
    type: str
    required: true
  release:
    description: The release's directory name.
    type: str
    required: true
  model:
    description: The checkpoint's directory name.
    type: str
    required: true
  disk_gib:
    description: Free space in GiB that making the release needs.
    type: float
    required: true
  host:
    description: The address that the server will bind.
    type: str
    required: true
  port:
    description: The port that the server will bind.
    type: int
    required: true
author: [Volta]
"""
EXAMPLES = r"""
- name: Refuse what cannot work
  volta_preflight:
    root: /opt/volta
    release: 0123456789ab
    model: SmolLM2-135M-Instruct-NVFP4
    disk_gib: 3
    host: 127.0.0.1
    port: 8000
"""
RETURN = r"""
free_gib:
  description: Free space at the install root.
  type: float
  returned: always
busy:
  description: Processes of another run that make a release or a model here, as C(pid N (command)).
  type: list
  returned: always
missing:
  description: What a run has to make, C(release) and C(model).
  type: list
  returned: always
current:
  description: The name of the release that is served, empty where there is none.
  type: str
  returned: always
serving:
  description: The names of the releases whose service runs; a killed run may leave the one before.
  type: list
  returned: always
releases:
  description: The names of the complete releases, oldest first.
  type: list
  returned: always
remains:
  description: The names of releases that an interrupted run left incomplete.
  type: list
  returned: always
"""

import errno
import os
import socket
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

LISTEN = "0A"
FIRST_FREE_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


def existing_parent(path: Path) -> Path:
    """Return the nearest ancestor of `path` that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


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
            if words[1:] == service
        }
    )


def bind_error(host: str, port: int) -> OSError | None:
    """Try to bind; SO_REUSEADDR as servers use it, so that TIME_WAIT does not count."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def listeners(port: int, proc: Path = Path("/proc")) -> list[tuple[int, str]]:
    """Return (pid, command line) of the processes that listen on `port`, as far as readable."""
    inodes = set()
    for table in (proc / "net/tcp", proc / "net/tcp6"):
        try:
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            if row[3] == LISTEN and int(row[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{row[9]}]")
    found = {}
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) in inodes:
                process = link.parents[1]
                found[int(process.name)] = " ".join(command(process))
        except OSError:
            continue
    return sorted(found.items())


def port_problem(host: str, port: int, root: Path, first_free: int = 1024) -> str | None:
    """Return what is wrong with the address, or None; our own server may hold it.

    `first_free` is the first port that a process without privileges may bind.
    """
    if port < first_free:
        return (
            f"port {port} is kept for root (below {first_free}), and the server does not run as "
            f"root: set serve.port in stack.yaml to {first_free} or more"
        )
    error = bind_error(host, port)
    if error is None:
        return None
    if error.errno != errno.EADDRINUSE:
        return (
            f"{host} is no address that a server on this host can bind ({error.strerror}): "
            "set serve.host in stack.yaml to one that `ip address` lists, or to 127.0.0.1"
        )
    owners = listeners(port)
    if any(f"{root}/" in line for _pid, line in owners):
        return None
    named = "; ".join(f"pid {pid}: {line[:120]}" for pid, line in owners)
    return (
        f"port {port} on {host} is in use by "
        f"{named or 'a process of another user (run as root to see which)'}: "
        "stop it, or set serve.port in stack.yaml"
    )


def disk_problem(root: Path, free_gib: float, need_gib: float) -> str | None:
    """Return what is wrong with the disk that holds `root`, or None."""
    place = existing_parent(root)
    if not os.access(place, os.W_OK):
        return f"{place} is not writable by this user: run as root, or set preflight_root"
    if free_gib < need_gib:
        return (
            f"{place} has {free_gib:.1f} GiB free, the release needs {need_gib:.1f} GiB: "
            "free some, or set preflight_root to a directory on a larger disk"
        )
    return None


def releases(root: Path) -> tuple[list[str], list[str]]:
    """Return the complete releases, oldest first, and those that were never finished."""
    complete: list[tuple[float, str]] = []
    remains = []
    for directory in sorted(root.glob("releases/*")):
        manifest = directory / "release.json"
        if manifest.exists():
            complete.append((manifest.stat().st_mtime, directory.name))
        else:
            remains.append(directory.name)
    return [name for _made, name in sorted(complete)], remains


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "str", "required": True},
            "release": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "disk_gib": {"type": "float", "required": True},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    release, model = module.params["release"], module.params["model"]
    complete, remains = releases(root)
    missing = [] if release in complete else ["release"]
    if not (root / "models" / model / "SHA256SUMS").exists():
        missing.append("model")
    space = os.statvfs(existing_parent(root))
    free = space.f_bavail * space.f_frsize / 2.0**30
    busy = makers(root)
    found = [
        f"another run is at work here: {'; '.join(busy)}: let it end, or end it" if busy else None,
        disk_problem(root, free, module.params["disk_gib"] if "release" in missing else 0),
        port_problem(
            module.params["host"], module.params["port"], root, int(FIRST_FREE_PORT.read_text())
        ),
    ]
    problems = [problem for problem in found if problem]
    current = root / "current"
    result = {
        "changed": False,
        "free_gib": round(free, 1),
        "busy": busy,
        "missing": missing,
        "current": current.readlink().name if current.is_symlink() else "",
        "serving": serving(root),
        "releases": complete,
        "remains": remains,
    }
    if problems:
        module.fail_json(msg=" / ".join(problems), problems=problems, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
