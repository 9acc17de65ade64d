"""A host made of files and canned answers, and facts made by changing healthy ones."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec.inspect
import pytest

from volta_doctor.facts.model import Facts, Snapshot, decode, encode
from volta_doctor.findings import Finding
from volta_doctor.probe import Answer, CannotLook, Completed, Disk, Probe
from volta_doctor.profile import Profile
from volta_doctor.report import Report, build


class FakeProbe(Probe):
    """A tree of files in place of the host; commands, URLs and RPCs answer from tables.

    A command's answer is its output, or (exit code, output, error output).
    """

    def __init__(
        self,
        root: Path,
        files: Mapping[str, str | bytes | None] = {},
        commands: Mapping[str, Any] = {},
        urls: Mapping[str, Answer] = {},
        rpcs: Mapping[str, Any] = {},
        env: Mapping[str, str] = {},
        is_root: bool = True,
        disks: Mapping[str, Disk] = {},
    ) -> None:
        super().__init__(root, {"PATH": "/usr/bin", "HOME": "/root", **env})
        self.commands, self.urls, self.rpcs, self._is_root = commands, urls, rpcs, is_root
        self.disks = disks
        self.asked: list[str] = []
        for name, content in files.items():
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            elif isinstance(content, str) and content.startswith("-> "):
                path.symlink_to(content[3:])
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)

    def which(self, command: str) -> str | None:
        known = any(line.split()[0] == command for line in self.commands)
        return f"/usr/bin/{command}" if known else None

    def run(self, *argv: str, limit: float, take: Callable[[str], None] | None = None) -> Completed:
        line = " ".join(argv)
        self.asked.append(line)
        if line not in self.commands:
            raise CannotLook(f"{argv[0]}: No such file or directory")
        answer = self.commands[line]
        code, out, err = answer if isinstance(answer, tuple) else (0, answer, "")
        if take:
            for begin in range(0, len(out), 1000):
                take(out[begin : begin + 1000])
            out = ""
        return Completed(code, out, err, 0.01)

    def disk(self, path: Path | str) -> Disk:
        if str(path) not in self.disks:
            raise CannotLook(f"{path}: No such file or directory")
        return self.disks[str(path)]

    def get(self, url: str, limit: float) -> Answer:
        return self.urls.get(url, Answer(None, "", 0.0, "Connection refused"))

    def rpc(self, socket_path: Path | str, method: str, *args: str) -> Any:
        answer = self.rpcs[f"{socket_path} {method} {' '.join(args)}"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def is_root(self) -> bool:
        return self._is_root

    def monotonic(self) -> float:
        return 40_000.0

    def sleep(self, seconds: float) -> None:
        self.asked.append(f"sleep {seconds:g}")


def merge(target: Any, change: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396); a mapping with numbers for keys changes a list."""
    if not isinstance(change, dict):
        return change
    if isinstance(target, list) and all(isinstance(key, int) for key in change):
        changed = list(target)
        for index, value in change.items():
            if index == len(changed):
                changed.append(value)
            else:
                changed[index] = merge(changed[index], value)
        return changed
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


TOLD = pytest.StashKey[list[str]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Have a line written at the end of the run, whether tests pass or fail."""
    return request.config.stash.setdefault(TOLD, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(TOLD, []):
        terminalreporter.write_line(line)


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., FakeProbe]:
    def make(**parts: Any) -> FakeProbe:
        return FakeProbe(tmp_path / "host", **parts)

    return make


@pytest.fixture(scope="session")
def data(repo: Path) -> Path:
    return repo / "tests/data/doctor"


@pytest.fixture(scope="session")
def healthy(data: Path) -> bytes:
    """The snapshot of a healthy host; each section is a file."""
    sections = {
        path.stem: {"ok": True, "seconds": 0.01, "data": json.loads(path.read_text())}
        for path in sorted((data / "healthy").glob("*.json"))
    }
    snapshot = {"schema": 1, "tool": "volta-doctor 0.1.0", "taken": "2026-11-30T21:20:00+00:00"}
    return json.dumps(snapshot | {"facts": sections}, indent=1).encode()


@pytest.fixture(scope="session")
def snapshot_with(healthy: bytes) -> Callable[[Mapping[str, Any]], Snapshot]:
    """Return the healthy snapshot with changes by section; a text is why a section failed."""

    def change(sections: Mapping[str, Any]) -> Snapshot:
        raw = json.loads(healthy)
        for name, value in sections.items():
            assert name in raw["facts"], f"no section {name}"
            if isinstance(value, str):
                raw["facts"][name] = {"ok": False, "error": value}
            else:
                raw["facts"][name]["data"] = merge(raw["facts"][name]["data"], value)
        return decode(json.dumps(raw).encode())

    return change


@pytest.fixture
def report(snapshot_with: Callable[..., Snapshot]) -> Callable[..., Report]:
    """Return a report on the given findings of a host with two V100s."""
    from volta_doctor.folding import fold, rank

    def make(*findings: Finding, notes: Sequence[str] = ()) -> Report:
        reason = "2 x Tesla V100 SXM2 32GB (10de:1db5)"
        profile = Profile(name="v100-sxm2", gpu="volta", reason=reason)
        return build(snapshot_with({}), profile, rank(fold(list(findings))), notes)

    return make


@pytest.fixture
def doctor(repo: Path, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run the command; it remembers nothing on this machine, and takes no waivers from it."""

    def run(*args: str, **env: str) -> "subprocess.CompletedProcess[str]":
        state, config = str(tmp_path / "state"), str(tmp_path / "config")
        paths = {"PYTHONPATH": str(repo / "doctor"), "COLUMNS": "80"}
        paths |= {"XDG_STATE_HOME": state, "XDG_CONFIG_HOME": config}
        return subprocess.run(
            [sys.executable, "-m", "volta_doctor", *args],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **paths, **env},
            timeout=60,
        )

    return run


@pytest.fixture
def saved(
    tmp_path: Path, snapshot_with: Callable[..., Snapshot]
) -> Callable[[Mapping[str, Any]], str]:
    """Write the healthy snapshot with changes to a file, and return its path."""

    def save(sections: Mapping[str, Any]) -> str:
        path = tmp_path / "snapshot.json"
        path.write_bytes(encode(snapshot_with(sections)))
        return str(path)

    return save


def parts(kind: Any) -> Iterator[Any]:
    """Yield the types that a type of msgspec.inspect is made of, itself among them."""
    yield kind
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(kind, name):
            yield from parts(getattr(kind, name))
    for part in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from parts(part)


@pytest.fixture(scope="session")
def fact_fields() -> dict[tuple[type, str], list[Any]]:
    """Every field of every struct of a snapshot: (struct, name), and what its type is made of."""
    found: dict[tuple[type, str], list[Any]] = {}
    todo = [msgspec.inspect.type_info(Facts)]
    seen: set[str] = set()
    while todo:
        struct = todo.pop()
        if repr(struct) in seen or not isinstance(struct, msgspec.inspect.StructType):
            continue
        seen.add(repr(struct))
        for field in struct.fields:
            made_of = list(parts(field.type))
            plain = getattr(struct.cls, "__origin__", struct.cls)  # Section[T] is Section
            found.setdefault((plain, field.name), []).extend(made_of)
            todo += made_of
    return found


def make_elf(
    sections: Mapping[str, bytes] = {}, needed: Sequence[str] = (), bits: int = 64
) -> bytes:
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
        link = order.index(".dynstr") if name in (".dynamic", ".gnu.version_r") else 0
        start = names.index(name.encode() + b"\0") if name else 0
        table += struct.pack(
            "<IIQQQQIIQQ", start, 1, 0, 0, 64 + len(body), len(content), link, 0, 8, 0
        )
        body += content
    ident = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    count = len(order)
    fields = (ident, 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return struct.pack("<16sHHIQQQIHHHHHH", *fields) + body + table


@pytest.fixture(scope="session")
def elf_file() -> Callable[..., bytes]:
    return make_elf


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
