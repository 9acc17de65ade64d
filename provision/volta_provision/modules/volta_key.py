#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""A package repository's signing key, fetched and accepted by its fingerprint alone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_key
short_description: Put a repository's signing key on the host, accepted by its fingerprint
description:
  - Leaves a file alone that holds this one key; else fetches it and refuses any other.
  - Needs no gpg. The fingerprint is computed from the key itself (RFC 4880, 12.2).
options:
  url:
    description: Where the key is, armoured or binary; C(file://) works too.
    type: str
    required: true
  dest:
    description: Where it goes; readable by all, as apt's own user must read it.
    type: path
    required: true
  fingerprint:
    description: The 40 hexadecimal digits of the key's fingerprint.
    type: str
    required: true
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Fetch the key of NVIDIA's repository
  volta_key:
    url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
    dest: /etc/apt/keyrings/volta-nvidia.asc
    fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
"""
RETURN = r"""
fingerprints:
  description: The fingerprints of the keys in what was there, or was fetched.
  type: list
  elements: str
  returned: always
"""

import base64
import binascii
import hashlib
import os
import re
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

PUBLIC_KEY = 6  # packet tag (RFC 4880, 4.3)
TIMEOUT_S = 30


def dearmour(data: bytes) -> bytes:
    """Return the binary packets of an armoured or a binary key file."""
    blocks = re.findall(
        rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP", data, re.DOTALL
    )
    if not blocks:
        return data
    lines = [
        line
        for block in blocks
        # Headers end at the first empty line; the checksum line begins with "=".
        for line in re.split(rb"\r?\n[ \t]*\r?\n", b"\n" + block, maxsplit=1)[-1].split()
        if not line.startswith(b"=")
    ]
    return base64.b64decode(b"".join(lines))


def packets(data: bytes) -> list[tuple[int, bytes]]:
    """Return (tag, body) of each packet; ValueError where `data` is no OpenPGP."""
    found, at = [], 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("not an OpenPGP key")
        if head & 0x40:  # new format: a length of one, two or five octets
            tag, first = head & 0x3F, data[at + 1]
            if first < 192:
                at, size = at + 2, first
            elif first < 224:
                at, size = at + 3, ((first - 192) << 8) + data[at + 2] + 192
            elif first == 255:
                at, size = at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
            else:
                raise ValueError("a key packet of unknown length")
        else:  # old format: the length has 1, 2 or 4 octets
            tag, octets = (head >> 2) & 0x0F, 1 << (head & 3)
            if octets == 8:
                raise ValueError("a key packet of unknown length")
            size = int.from_bytes(data[at + 1 : at + 1 + octets], "big")
            at += 1 + octets
        found.append((tag, data[at : at + size]))
        at += size
    return found


def fingerprints(data: bytes) -> list[str]:
    """Return the version 4 fingerprints of the primary keys in a key file; ValueError if none."""
    try:
        bodies = [body for tag, body in packets(dearmour(data)) if tag == PUBLIC_KEY]
    except (IndexError, binascii.Error) as error:
        raise ValueError("not an OpenPGP key") from error
    if not bodies or any(body[:1] != b"\x04" for body in bodies):
        raise ValueError("not an OpenPGP key of version 4")
    return [
        hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324
        for body in bodies
    ]


def holds(path: Path, fingerprint: str) -> bool:
    """Say whether a file holds this key and no other."""
    try:
        return fingerprints(path.read_bytes()) == [fingerprint]
    except (OSError, ValueError):
        return False


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(name).chmod(0o644)
    Path(name).replace(path)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "fingerprint": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    url, dest = module.params["url"], Path(module.params["dest"])
    wanted = module.params["fingerprint"].replace(" ", "").upper()
    if not re.fullmatch(r"[0-9A-F]{40}", wanted):
        module.fail_json(msg=f"a fingerprint has 40 hexadecimal digits, not {wanted!r}")
    if holds(dest, wanted):
        module.exit_json(changed=False, fingerprints=[wanted])
    diff = {"before": "", "after": f"{dest}: key {wanted}\n"}
    if module.check_mode:
        module.exit_json(changed=True, fingerprints=[], diff=diff)
    try:
        data = open_url(url, timeout=TIMEOUT_S).read()
    except Exception as error:  # urllib, ssl and the socket raise their own kinds
        module.fail_json(
            msg=f"the signing key cannot be fetched from {url}: {error}. Nothing was changed; "
            "make that address reachable from this host, or name a local mirror or bundle."
        )
    try:
        found = fingerprints(data)
    except ValueError as error:
        module.fail_json(msg=f"{url} is {error} ({len(data)} bytes)")
    if found != [wanted]:
        module.fail_json(
            msg=f"{url} holds {', '.join(found)}, but the key must be {wanted}. Nothing was "
            "trusted. Where the repository's owner has announced a new key, give its fingerprint."
        )
    write(dest, data)
    module.exit_json(changed=True, fingerprints=found, diff=diff)


if __name__ == "__main__":
    main()
