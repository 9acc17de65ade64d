"""The CUDA release of a compiler, a ptxas or a cicc, from the file itself.

Tools are not run, for some lie where a server's user may write: each holds the text that it prints
for --version.
"""

import re

import msgspec

from volta_doctor.facts import elf
from volta_doctor.facts.python_envs.layout import container_root
from volta_doctor.probe import CannotLook, Probe

_RELEASE = re.compile(rb"Cuda compilation tools, release (\d+\.\d+), V\d")
_SCRIPT = re.compile(r"^\s*exec\s+[\"']?(/[^\s\"']+)", re.MULTILINE)
_SCRIPT_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_TEXT_BYTES = 1 << 28  # cicc of 13.0 is a file of 77 MB


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A compiler's file and its CUDA release (12.8), None for `problem`, where it cannot be told.

    `real` is the program behind links and scripts; `missing` says that there is no such file.
    """

    path: str
    real: str
    release: str | None = None
    problem: str = ""
    missing: bool = False


class Tools:
    """Reads tools, each file once."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._releases: dict[str, tuple[str | None, str]] = {}

    def read(self, path: str) -> Tool:
        """Return what a tool is; scripts are followed to the program that they run."""
        real, problem = path, ""
        try:
            if not self._probe.exists(path):
                text = f"{path}: No such file or directory"
                return Tool(path=path, real=path, problem=text, missing=True)
            real = self._program(path)
            if real not in self._releases:
                self._releases[real] = self._release(real)
            release, problem = self._releases[real]
        except CannotLook as reason:
            release, problem = None, str(reason)
        return Tool(path=path, real=real, release=release, problem=problem)

    def _program(self, path: str) -> str:
        root = container_root(path)
        for _ in range(4):
            path = self._probe.resolve(path)
            with self._probe.open(path) as file:
                head = file.read(_SCRIPT_BYTES)
            if not head.startswith(b"#!"):
                return path
            match = _SCRIPT.search(head.decode(errors="replace"))
            if match is None:
                raise CannotLook(f"{path} is a script that does not tell which program it runs")
            path = root + match[1]
        raise CannotLook(f"{path}: too many scripts that run one another")

    def _release(self, path: str) -> tuple[str | None, str]:
        try:
            with self._probe.open(path) as file:
                rodata = next(s for s in elf.sections(file) if s.name == ".rodata")
                before = b""
                for offset in range(0, min(rodata.size, _TEXT_BYTES), _CHUNK_BYTES):
                    size = min(_CHUNK_BYTES, rodata.size - offset)
                    chunk = before + elf.read_at(file, rodata.offset + offset, size)
                    if match := _RELEASE.search(chunk):
                        return match[1].decode(), ""
                    before = chunk[-64:]
        except elf.NotRead as reason:
            return None, f"{path} {reason}"
        except StopIteration:
            pass
        return None, f"{path} does not name its CUDA release"
