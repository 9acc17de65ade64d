"""Servers of a host, and ELF files as small as they may be to lie in its tree."""

import struct
from collections.abc import Callable, Mapping, Sequence

import pytest

from volta_doctor.facts import serve
from volta_doctor.facts.serve import ServeFacts, Server

_HEADER = "<16sHHIQQQIHHHHHH"


def make(sections: Mapping[str, bytes] = {}, needed: Sequence[str] = (), bits: int = 64) -> bytes:
    """Return an ELF file with these sections, asking for these libraries."""
    contents = {"": b"", **sections}
    if needed:
        strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
        offsets = [strings.index(name.encode()) for name in needed]
        contents[".dynamic"] = b"".join(struct.pack("<qQ", 1, offset) for offset in offsets)
        contents[".dynstr"] = strings
    contents[".shstrtab"] = b""
    names = b"\0".join(name.encode() for name in contents) + b"\0"
    contents[".shstrtab"] = names
    order = list(contents)
    body, table = b"", b""
    for name, content in contents.items():
        link = order.index(".dynstr") if name == ".dynamic" else 0
        start = names.index(name.encode() + b"\0") if name else 0
        table += struct.pack(
            "<IIQQQQIIQQ", start, 1, 0, 0, 64 + len(body), len(content), link, 0, 8, 0
        )
        body += content
    ident = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    count = len(order)
    fields = (ident, 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return struct.pack(_HEADER, *fields) + body + table


@pytest.fixture(scope="session")
def elf_file() -> Callable[..., bytes]:
    return make


@pytest.fixture(scope="session")
def fat_binary() -> Callable[..., bytes]:
    """Return a function that makes one region of a fat binary; an entry is (kind, arch)."""

    def region(*entries: tuple[int, int]) -> bytes:
        pieces = b"".join(
            struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, 8, 0, 0, 1, 7, arch, 0, 0, 0x11, 0, 0)
            + bytes(8)
            for kind, arch in entries
        )
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(pieces)) + pieces

    return region


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says which servers the host has."""

    def set_servers(*servers: Server, problem: str = "") -> None:
        facts = ServeFacts(servers=list(servers), problem=problem)
        monkeypatch.setattr(serve, "find", lambda _probe: facts)

    set_servers()
    return set_servers
