#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Sets what the kernel lets root set, now and at every boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_tunables
short_description: Set sysctls and files of sysfs, now and at every boot
description:
  - Writes the values that differ, reads them back, and keeps them in one drop-in for sysctl and one
    for tmpfiles.
  - What cannot be written here, as in a container, is left out of both, and the reason returned.
  - A drop-in that would hold nothing is removed; the running values then stay until the next boot.
options:
  sysctl:
    description: Values by name.
    type: dict
    default: {}
  sysctl_file:
    description: The drop-in that keeps them.
    type: path
    required: true
  sysfs:
    description: Words by path, for files that show their choices with the chosen one in brackets.
    type: dict
    default: {}
  sysfs_file:
    description: The drop-in of tmpfiles.d that keeps them.
    type: path
    required: true
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Keep models in RAM
  volta_tunables:
    sysctl: {vm.swappiness: 10}
    sysctl_file: /etc/sysctl.d/90-volta.conf
    sysfs: {/sys/kernel/mm/transparent_hugepage/enabled: madvise}
    sysfs_file: /etc/tmpfiles.d/volta.conf
"""
RETURN = r"""
set:
  description: What is or would be set, by name or path, as C(from -> to).
  type: dict
  returned: always
left:
  description: What cannot be set here, by name or path, with the reason.
  type: dict
  returned: always
"""

import os
import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

HEADER = "# Written by Volta's role host; a later file of your own overrides it.\n"
SYSCTL_DIRECTORIES = ("usr/lib/sysctl.d", "run/sysctl.d", "etc/sysctl.d")


def sysctl_path(root: Path, name: str) -> Path:
    return root / "proc/sys" / name.replace(".", "/")


def current(path: Path) -> str:
    """Return a setting's value; of choices, the one in brackets."""
    value = " ".join(path.read_text().split())
    chosen = re.search(r"\[(\S+)\]", value)
    return chosen[1] if chosen else value


def why_left(path: Path) -> str:
    """Return why a setting cannot be written, empty where it can."""
    if not path.exists():
        return "this kernel does not have it"
    # For root, only a file system that is mounted read-only says no.
    return "" if os.access(path, os.W_OK) else "it is read-only here, as in a container"


def overridden(root: Path, name: str, own: Path) -> str:
    """Return the drop-in that sets a sysctl after ours at boot, empty where there is none."""
    files: dict[str, Path] = {}
    for directory in SYSCTL_DIRECTORIES:
        files.update({path.name: path for path in (root / directory).glob("*.conf")})
    line = re.compile(rf"^\s*-?{re.escape(name)}\s*=", re.MULTILINE)
    for file_name in sorted(files, reverse=True):
        if file_name <= own.name:
            return ""
        if line.search(files[file_name].read_text(errors="replace")):
            return str(files[file_name])
    return ""


def drop_in(lines: list[str]) -> str:
    return HEADER + "".join(f"{line}\n" for line in lines) if lines else ""


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def write(path: Path, content: str) -> None:
    """Write a file by a temporary name, or remove it where it would be empty."""
    if not content:
        path.unlink()
        return
    temporary = path.with_name(f".{path.name}.volta")
    temporary.write_text(content)
    temporary.chmod(0o644)
    temporary.replace(path)


def apply(path: Path, value: str) -> str:
    """Set a value and return what is wrong, empty where it reads back."""
    try:
        path.write_text(value)
    except OSError as error:
        return f"{path} does not take {value}: {error.strerror}"
    now = current(path)
    return "" if now == value else f"{path} was set to {value} and reads {now}"


def difference(what: str, before: str, after: str) -> dict[str, str]:
    return {"before_header": what, "after_header": what, "before": before, "after": after}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysctl": {"type": "dict", "default": {}},
            "sysctl_file": {"type": "path", "required": True},
            "sysfs": {"type": "dict", "default": {}},
            "sysfs_file": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    p, root = module.params, Path("/")
    paths = {name: sysctl_path(root, name) for name in p["sysctl"]}
    paths.update({name: Path(name) for name in p["sysfs"]})
    wanted = {name: str(value) for name, value in {**p["sysctl"], **p["sysfs"]}.items()}
    left = {name: reason for name, path in paths.items() if (reason := why_left(path))}
    here = {name: value for name, value in wanted.items() if name not in left}
    files = {
        p["sysctl_file"]: drop_in([f"{n} = {v}" for n, v in here.items() if n in p["sysctl"]]),
        p["sysfs_file"]: drop_in(
            [f"w! {n} - - - - {v}" for n, v in here.items() if n in p["sysfs"]]
        ),
    }
    before = {name: current(paths[name]) for name in here}
    off = {name: value for name, value in here.items() if before[name] != value}
    stale = {path: content for path, content in files.items() if read(Path(path)) != content}
    diff = [
        difference(
            "the running kernel",
            "".join(f"{name} = {before[name]}\n" for name in off),
            "".join(f"{name} = {value}\n" for name, value in off.items()),
        ),
        *(difference(path, read(Path(path)), content) for path, content in stale.items()),
    ]
    if not module.check_mode:
        problems = [problem for n, v in off.items() if (problem := apply(paths[n], v))]
        if problems:
            module.fail_json(msg="; ".join(problems))
        for path, content in stale.items():
            write(Path(path), content)
    for name in here:
        if name in p["sysctl"] and (later := overridden(root, name, Path(p["sysctl_file"]))):
            module.warn(
                f"{later} sets {name} after {p['sysctl_file']} at every boot: change it there"
            )
    module.exit_json(
        changed=bool(off or stale),
        set={name: f"{before[name]} -> {value}" for name, value in off.items()},
        left=left,
        diff=diff,
    )


if __name__ == "__main__":
    main()
