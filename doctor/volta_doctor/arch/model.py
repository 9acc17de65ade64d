"""What `volta-doctor arch` reads out of files: their device code, and how they were built."""

from typing import Literal

import msgspec

from volta_doctor.facts.fatbin import DeviceCode

Kind = Literal["elf", "cubin", "fatbin", "ptx", "pe", "archive"]
Target = Literal["file", "directory", "wheel", "venv", "process"]


class BuildInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a file was built, as far as it says so.

    `nvcc` is the toolkit release of its first machine code (12.8), where that tells. `glibc`,
    `glibcxx` and `cxxabi` are the highest versions that it asks of libc and libstdc++. `python` is
    the tag in its name (cp311, abi3). `torch_cxx11_abi` says with which of libstdc++'s two ABIs of
    std::string it calls torch.
    """

    nvcc: str | None = None
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    python: str | None = None
    torch_cxx11_abi: bool | None = None


class CodeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file with device code, with needs of GPU libraries, or with a problem.

    `path` names a member behind a `!`: "x.whl!torch/lib/libc10.so", "lib.a!gemm.o". `size` is in
    bytes. `ptx_isa` gives the newest PTX ISA version (8.7) for each architecture of `code.ptx`.
    `needs` are the libraries that it asks for, by soname. `problem` says what could not be read.
    """

    path: str
    kind: Kind
    size: int
    code: DeviceCode = DeviceCode()
    ptx_isa: dict[str, str] = {}
    needs: list[str] = []
    build: BuildInfo = BuildInfo()
    problem: str = ""


class Scan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one target holds; `looked_at` counts the files that were opened.

    `unread` names what was not looked at, and why, one sentence each.
    """

    target: str
    kind: Target
    files: list[CodeFile]
    looked_at: int
    unread: list[str] = []

    def is_loose(self, file: CodeFile) -> bool:
        """Say whether it is a kernel in a file of its own, beside others: its program picks one."""
        return self.kind != "file" and file.kind in ("cubin", "fatbin", "ptx")
