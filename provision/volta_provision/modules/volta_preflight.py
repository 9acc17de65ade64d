#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Refuses a host on which a release could not be made or served, before anything is changed."""

# Annotations are not evaluated: 3.9 does not know all of them.
from __future__ import annotations

DOCUMENTATION = r"""
module: volta_preflight
short_description: Check that a release fits on a host and its port is free
description:
  - Checks free disk space (for a release only where it is not already complete) and the port.
  - Fails with every problem of the host, each with its remedy. Changes nothing.
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
  releases:
    description: >-
      The names of the complete releases on the host, as M(volta.stack.volta_release) tells them.
    type: list
    elements: str
    required: true
  model:
    description: The checkpoint's directory name.
    type: str
    required: true
  disk_gib:
    description: Free space in GiB that making the release needs.
    type: float
    required: true
  space:
    description: >-
      What else will be installed; each with its C(path), the C(gib) that it needs there, and
      C(what) it is.
    type: list
    elements: dict
    default: []
  problems:
    description: What else is wrong with the host, as M(volta.stack.volta_host_check) tells it.
    type: list
    elements: str
    default: []
  host:
    description: The address that the server will bind.
    type: str
    required: true
  port:
    description: The port that the server will bind.
    type: int
    required: true
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Refuse what cannot work
  volta_preflight:
    root: /opt/volta
    release: 0123456789ab
    releases: []
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
missing:
  description: What a run has to make, C(release) and C(model).
  type: list
  returned: always
"""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.basic import AnsibleModule

LISTEN = "0A"
RELEASE = "the release"
FIRST_FREE_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


def existing_parent(path: Path) -> Path:
    """Return the nearest ancestor of `path` that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


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
                words = (process / "cmdline").read_bytes().split(b"\0")
                found[int(process.name)] = b" ".join(words).decode(errors="replace").strip()
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


class Need(NamedTuple):
    """Room for one thing, in GiB at a path."""

    path: Path
    gib: float
    what: str


def free_gib(path: Path) -> float:
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize / 2.0**30


def space_problems(
    needs: list[Need], disk: Callable[[Path], tuple[int, float]] | None = None
) -> list[str]:
    """Return what is wrong with the disks; what lies on one file system is added up.

    `disk` gives the file system's number and its free GiB for a path that exists.
    """
    disk = disk or (lambda path: (path.stat().st_dev, free_gib(path)))
    by_disk: dict[tuple[int, float], list[Need]] = {}
    for need in needs:
        by_disk.setdefault(disk(existing_parent(need.path)), []).append(need)
    problems = []
    for (_number, free), of_disk in by_disk.items():
        total = sum(need.gib for need in of_disk)
        if free >= total:
            continue
        parts = " and ".join(f"{n.what} needs {n.gib:g} GiB at {n.path}" for n in of_disk)
        larger = any(need.what == RELEASE for need in of_disk)
        problems.append(
            f"{existing_parent(of_disk[0].path)} has {free:.{1 if free >= 1 else 2}f} GiB free, and"
            f" {parts}: free some"
            + (", or set preflight_root to a directory on a larger disk" if larger else "")
        )
    return problems


def access_problem(root: Path) -> str | None:
    """Return what keeps this user from writing to the install root, or None."""
    place = existing_parent(root)
    if os.access(place, os.W_OK):
        return None
    return f"{place} is not writable by this user: run as root, or set preflight_root"


def message(problems: list[str]) -> str:
    """Return one message of all problems, a line for each where there are several."""
    if len(problems) == 1:
        return problems[0]
    lines = "".join(f"\n{number}. {problem}." for number, problem in enumerate(problems, 1))
    return f"{len(problems)} things keep this host from being made right:{lines}"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "str", "required": True},
            "release": {"type": "str", "required": True},
            "releases": {"type": "list", "elements": "str", "required": True},
            "model": {"type": "str", "required": True},
            "disk_gib": {"type": "float", "required": True},
            "space": {"type": "list", "elements": "dict", "default": []},
            "problems": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    release, model = module.params["release"], module.params["model"]
    missing = [] if release in module.params["releases"] else ["release"]
    if not (root / "models" / model / "SHA256SUMS").exists():
        missing.append("model")
    needs = [Need(root, module.params["disk_gib"], RELEASE)] if "release" in missing else []
    needs += [
        Need(Path(row["path"]), float(row["gib"]), row["what"]) for row in module.params["space"]
    ]
    found = [
        *module.params["problems"],
        *space_problems(needs),
        access_problem(root),
        port_problem(
            module.params["host"], module.params["port"], root, int(FIRST_FREE_PORT.read_text())
        ),
    ]
    problems = [problem for problem in found if problem]
    result = {
        "changed": False,
        "free_gib": round(free_gib(existing_parent(root)), 1),
        "missing": missing,
    }
    if problems:
        module.fail_json(msg=message(problems), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
