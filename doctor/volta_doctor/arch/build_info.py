"""Reads how a shared object was built: what it asks of libc, libstdc++, torch and Python."""

import itertools
import re
import struct
from collections.abc import Iterator

from volta_doctor.arch.model import BuildInfo
from volta_doctor.facts.elf import NotRead, Readable, Section, read_at
from volta_doctor.words import numbers

# Elf64_Verneed and Elf64_Vernaux
_FILE = struct.Struct("<HHIII")
_VERSION = struct.Struct("<IHHII")
_VERSIONS_BYTES = 1 << 16
_VERSIONS = 512
_NAME_BYTES = 64
_NUMBERED = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)$")
# A function of torch that takes a std::string, as either of libstdc++'s two ABIs mangles it
_TORCH = re.compile(rb"libtorch|libc10")
_TAKES_STRING = re.compile(rb"_ZNK?(?:3c10|2at|5torch)\w{0,400}?(?:(NSt7__cxx11)|RKSs)")
_SYMBOLS_BYTES = 1 << 20
_TAG = re.compile(r"\.(?:cpython-(\d+t?)-[\w-]+\.so|(abi3)\.so|cp(\d+t?)-[\w-]+\.pyd)$")


def read(file: Readable, found: list[Section], needs: list[str], name: str) -> BuildInfo:
    """Return what an ELF file says; `name` is that of the file. Raises NotRead."""
    highest: dict[str, str] = {}
    for kind, version in _versions(file, found):
        if numbers(version) > numbers(highest.get(kind, "0")):
            highest[kind] = version
    is_for_torch = any(_TORCH.match(need.encode()) for need in (*needs, name.rsplit("/", 1)[-1]))
    return BuildInfo(
        glibc=highest.get("GLIBC"),
        glibcxx=highest.get("GLIBCXX"),
        cxxabi=highest.get("CXXABI"),
        python=python_tag(name),
        torch_cxx11_abi=_torch_abi(file, found) if is_for_torch else None,
    )


def python_tag(name: str) -> str | None:
    """Return the tag in an extension module's name: cp311, abi3."""
    match = _TAG.search(name)
    return (match[2] or f"cp{match[1] or match[3]}") if match else None


def _versions(file: Readable, found: list[Section]) -> Iterator[tuple[str, str]]:
    """Yield the versions of symbols that libraries must have: ("GLIBC", "2.34")."""
    section = next((s for s in found if s.name == ".gnu.version_r" and s.size), None)
    if section is None:
        return
    if section.link >= len(found):
        raise NotRead("asks for versions whose names are nowhere")
    strings = found[section.link]
    table = read_at(file, section.offset, min(section.size, _VERSIONS_BYTES))
    for name in itertools.islice(_version_names(table), _VERSIONS):
        if name < strings.size:
            size = min(_NAME_BYTES, strings.size - name)
            text = read_at(file, strings.offset + name, size).split(b"\0")[0]
            if match := _NUMBERED.match(text.decode(errors="replace")):
                yield match[1], match[2]


def _version_names(table: bytes) -> Iterator[int]:
    """Yield where the names lie; a row says how far away the next is, 0 for the last."""
    row = 0
    while row + _FILE.size <= len(table):
        _, _, _, first, next_row = _FILE.unpack_from(table, row)
        place = row + first
        while first and place + _VERSION.size <= len(table):
            _, _, _, name, further = _VERSION.unpack_from(table, place)
            yield name
            if not further:
                break
            place += further
        if not next_row:
            return
        row += next_row


def _torch_abi(file: Readable, found: list[Section]) -> bool | None:
    strings = next((s for s in found if s.name == ".dynstr"), None)
    if strings is None:
        return None
    data = read_at(file, strings.offset, min(strings.size, _SYMBOLS_BYTES))
    match = _TAKES_STRING.search(data)
    return bool(match[1]) if match else None
