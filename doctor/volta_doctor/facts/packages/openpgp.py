"""Reads just enough OpenPGP (RFC 9580) to tell by which hash a key is bound to its user ids.

apt's verifier rejects a key whose every self-signature uses SHA-1. gpg, which could list the
packets, is not installed on hosts whose apt uses sqv: exactly those that reject such keys.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_SIGNATURE, _PUBLIC_KEY, _USER_ID = 2, 6, 13
_CERTIFICATIONS = range(0x10, 0x14)  # generic, persona, casual, positive
_ISSUER_KEY_ID, _ISSUER_FINGERPRINT = 16, 33
_BROKEN_HASHES = {1, 2, 3}  # MD5, SHA-1, RIPE-MD/160


def sha1_bound_keys(keyring: bytes) -> dict[str, bool]:
    """Return {fingerprint and user id: every self-certification uses SHA-1 or worse}.

    Raises ValueError when the bytes are no OpenPGP keyring.
    """
    bound: dict[str, bool] = {}
    key_id, fingerprint, user = b"", "", ""
    hashes: list[int] = []

    def finish() -> None:
        if fingerprint and hashes:
            bound[f"{fingerprint} {user}".strip()] = all(h in _BROKEN_HASHES for h in hashes)

    for tag, body in packets(dearmor(keyring)):
        if tag == _PUBLIC_KEY and body[:1] == b"\x04":
            finish()
            digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body)  # noqa: S324
            key_id, fingerprint, user, hashes = digest.digest()[-8:], digest.hexdigest(), "", []
        elif tag == _USER_ID:
            user = user or body.decode(errors="replace")
        elif tag == _SIGNATURE and is_certification(body) and key_id in issuers(body):
            hashes.append(body[3])
    finish()
    if not bound:
        raise ValueError("no version 4 OpenPGP key with a self-signature in it")
    return bound


def is_certification(signature: bytes) -> bool:
    """Say whether this is a version 4 signature that binds a key to a user id."""
    return signature[:1] == b"\x04" and signature[1] in _CERTIFICATIONS


def dearmor(data: bytes) -> bytes:
    """Return the binary form of an armoured keyring; a binary one stays as it is."""
    blocks = re.findall(
        rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(.*?)-----END", data, re.DOTALL
    )
    if not blocks:
        return data
    binary = b""
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        body = [line for line in lines if line and b":" not in line and line[:1] != b"="]
        try:
            binary += base64.b64decode(b"".join(body), validate=True)
        except binascii.Error as error:
            raise ValueError(f"bad armour: {error}") from error
    return binary


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, body) of each packet. Raises ValueError where the framing does not hold."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError(f"no OpenPGP packet at byte {at}")
        if head & 0x40:
            tag = head & 0x3F
            size, at = _length(data, at + 1)
        else:
            tag = head >> 2 & 0x0F
            octets = 1 << (head & 3)
            if octets == 8:
                raise ValueError(f"packet of indeterminate length at byte {at}")
            size, at = int.from_bytes(data[at + 1 : at + 1 + octets], "big"), at + 1 + octets
        if at + size > len(data):
            raise ValueError(f"packet cut off at byte {len(data)}")
        yield tag, data[at : at + size]
        at += size


def issuers(signature: bytes) -> set[bytes]:
    """Return the key ids that a version 4 signature names as its issuer."""
    hashed = int.from_bytes(signature[4:6], "big")
    rest = 6 + hashed
    unhashed = int.from_bytes(signature[rest : rest + 2], "big")
    found = set()
    for area in (signature[6:rest], signature[rest + 2 : rest + 2 + unhashed]):
        at = 0
        while at < len(area):
            size, at = _length(area, at)
            kind, value = area[at] & 0x7F, area[at + 1 : at + size]
            if kind in (_ISSUER_KEY_ID, _ISSUER_FINGERPRINT):
                found.add(value[-8:])
            at += size
    return found


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a new-format length at `at`; return it and where the body starts."""
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 255:
        return ((first - 192) << 8) + data[at + 1] + 192, at + 2
    return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
