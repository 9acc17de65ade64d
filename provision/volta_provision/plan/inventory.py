"""An Ansible inventory is no snapshot; it is recognised, to say how the snapshots are made."""

import re
import shlex
from pathlib import Path

import msgspec

# A group's heading of the INI form, or a variable that only an inventory has.
_INI = re.compile(
    rb"^\s*\[[\w.-]+(:(children|vars))?\]\s*$|\bansible_(host|user|connection|port)\b"
)
_KEYS = {"hosts", "children", "vars", "hostvars"}
_DOCTOR = "/opt/volta/current/venv/bin/volta-doctor"
_THERE = "/tmp/volta-snapshot.json"  # noqa: S108 - the doctor follows no link that another put there


def is_inventory(data: bytes) -> bool:
    """Say whether this looks like an inventory, of Ansible's INI, YAML or JSON form."""
    if any(_INI.search(line) for line in data.splitlines()):
        return True
    try:
        groups = msgspec.yaml.decode(data)
    except Exception:  # PyYAML's errors are of many classes, and this is only a question
        return False
    return isinstance(groups, dict) and any(
        isinstance(group, dict) and not _KEYS.isdisjoint(group) for group in groups.values()
    )


def snapshot_commands(inventory: Path) -> str:
    """Return the commands that fetch a snapshot of each host of an inventory, and plan for them."""
    all_hosts = f"ansible all -i {shlex.quote(str(inventory))}"
    return (
        f"{all_hosts} -m command -a '{_DOCTOR} snapshot -o {_THERE}' && "
        f"{all_hosts} -m fetch -a"
        f" 'src={_THERE} dest=snapshots/{{{{ inventory_hostname }}}}.json flat=yes' makes them;"
        " then give --hosts snapshots/*.json"
    )
