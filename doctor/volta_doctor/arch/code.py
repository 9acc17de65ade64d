"""Reads one open file, whatever it is, for its device code."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec

from volta_doctor.arch import ar, build_info, cubin, lz4, pe
from volta_doctor.arch.model import BuildInfo, CodeFile, Kind
from volta_doctor.arch.streams import Deadline, Window
from volta_doctor.catalog import compat
from volta_doctor.facts import elf, fatbin
from volta_doctor.facts.elf import NotRead, Readable, Section, read_at
from volta_doctor.facts.fatbin import DeviceCode, Survey
from volta_doctor.probe import CannotLook
from volta_doctor.words import numbers

# The libraries of CUDA, and those of torch that need them: libcudart.so.12, cublas64_12.dll
_GPU_LIBRARY = re.compile(
    r"(?:lib)?(?:cu(?:da|blas|dnn|fft|rand|solver|sparse|file|pti)|nvcuda|nvrtc|nvjitlink|nvshmem"
    r"|nvtoolsext|nvjpeg|npp|nccl|torch_cuda|c10_cuda)[\w-]*\.(?:so|dll)",
    re.IGNORECASE,
)
_HEAD_BYTES = 8
_PACKED_BYTES = 256
_PTX_BYTES = 1 << 16
_PTX_ISA = re.compile(rb"^\s*\.version\s+(\d+\.\d+)", re.MULTILINE)
_PTX_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d+[af]?)\b", re.MULTILINE)
_PTX_RELEASE = re.compile(rb"^// Cuda compilation tools, release (\d+\.\d+)", re.MULTILINE)

Beside = Callable[[str], AbstractContextManager[tuple[Readable, int]]]


def read(
    file: Readable, path: str, size: int, deadline: Deadline, beside: Beside | None = None
) -> Iterator[CodeFile]:
    """Yield what is of interest in a file: itself, or the members of an archive.

    `path` is what to call it. `beside` opens the files that a thin archive names; without it they
    cannot be had. Raises TooLate and nothing else: what is wrong with a file is its `problem`.
    """
    if _is_archive(file, size):
        members = _read_archive(file, path, size, deadline, beside)
        yield from _as_one(members, path, size) if compat().is_nvidias(path) else members
    elif found := _read_one(file, path, size):
        yield found


def _is_archive(file: Readable, size: int) -> bool:
    try:
        return read_at(file, 0, min(size, len(ar.MAGIC))) in (ar.MAGIC, ar.THIN)
    except NotRead:
        return False  # which is told where it is read


def _read_archive(
    file: Readable, path: str, size: int, deadline: Deadline, beside: Beside | None
) -> Iterator[CodeFile]:
    """Yield the members of interest; an archive in an archive is not followed."""
    try:
        for member in ar.members(file, size):
            deadline.check()
            name = f"{path}!{member.name}"
            if member.offset is not None:
                found = _read_one(Window(file, member.offset, member.size), name, member.size)
            elif beside is None:
                found = _broken(name, "elf", 0, "lies outside of this archive")
            else:
                try:
                    with beside(member.name) as (content, bytes_):
                        found = _read_one(content, name, bytes_)
                except CannotLook as reason:
                    found = CodeFile(path=name, kind="elf", size=0, problem=str(reason))
            if found:
                yield found
    except NotRead as reason:
        yield _broken(path, "archive", size, str(reason))


def _as_one(found: Iterator[CodeFile], path: str, size: int) -> Iterator[CodeFile]:
    """Join the members of an archive of NVIDIA's, which has one for each kernel and card."""
    sass, ptx, members = Counter[str](), Counter[str](), list(found)
    for member in members:
        sass.update(member.code.sass)
        ptx.update(member.code.ptx)
    isa = [member.ptx_isa for member in members]
    problem = next((f"{m.path}: {m.problem}" for m in members if m.problem), "")
    if not members:
        return
    yield CodeFile(
        path=path,
        kind="archive",
        size=size,
        code=fatbin.code_of(sass, ptx, problem),
        ptx_isa={arch: max((i[arch] for i in isa if arch in i), key=numbers) for arch in ptx},
        build=BuildInfo(nvcc=next((m.build.nvcc for m in members if m.build.nvcc), None)),
        problem=problem,
    )


def _read_one(file: Readable, path: str, size: int) -> CodeFile | None:
    kind: Kind = "elf"
    try:
        head = read_at(file, 0, min(size, _HEAD_BYTES))
        row = next((row for row in _FORMATS if head.startswith(row[0])), None)
        if row is None and path.endswith(".ptx"):  # a text, known by its name
            row = (b"", "ptx", _read_ptx)
        if row is None:
            return None
        _, kind, look = row
        found = look(file, path, size)
    except elf.NotElf:
        return None  # a program for another machine
    except NotRead as reason:
        return _broken(path, kind, size, str(reason))
    wanted = found and (found.code or found.problem or _asks_for_gpu(found.needs))
    return found if wanted else None


def _broken(path: str, kind: Kind, size: int, reason: str) -> CodeFile:
    return CodeFile(path=path, kind=kind, size=size, problem=f"it {reason}")


def _asks_for_gpu(needs: list[str]) -> bool:
    return any(_GPU_LIBRARY.match(name) for name in needs)


def _read_elf(file: Readable, path: str, size: int) -> CodeFile | None:
    if elf.header(file).machine == elf.EM_CUDA:
        arch, release = cubin.read(file)
        code, build = DeviceCode(sass={arch: 1}), BuildInfo(nvcc=release)
        return CodeFile(path=path, kind="cubin", size=size, code=code, build=build)
    found = elf.sections(file)
    survey = fatbin.survey(file, found)
    needs, build, problem = list[str](), BuildInfo(), survey.code.problem
    try:
        needs = elf.needed(file, found)
        build = build_info.read(file, found, needs, path)
    except NotRead as reason:
        problem = problem or str(reason)
    return CodeFile(
        path=path,
        kind="elf",
        size=size,
        code=survey.code,
        ptx_isa=survey.ptx_isa,
        needs=needs,
        build=msgspec.structs.replace(build, nvcc=_release(file, survey)),
        problem=f"it {problem}" if problem else "",
    )


def _read_fatbin(file: Readable, path: str, size: int) -> CodeFile:
    return _of_sections(file, path, "fatbin", size, [Section(fatbin.SECTIONS[0], 0, size, 0)], [])


def _read_pe(file: Readable, path: str, size: int) -> CodeFile | None:
    image = pe.read(file)
    return image and _of_sections(file, path, "pe", size, image.sections, image.needs)


def _of_sections(
    file: Readable, path: str, kind: Kind, size: int, found: list[Section], needs: list[str]
) -> CodeFile:
    survey = fatbin.survey(file, found)
    problem = survey.code.problem
    return CodeFile(
        path=path,
        kind=kind,
        size=size,
        code=survey.code,
        ptx_isa=survey.ptx_isa,
        needs=needs,
        build=BuildInfo(nvcc=_release(file, survey), python=build_info.python_tag(path)),
        problem=f"it {problem}" if problem else "",
    )


def _read_ptx(file: Readable, path: str, size: int) -> CodeFile:
    text = read_at(file, 0, min(size, _PTX_BYTES))
    isa, target, release = (p.search(text) for p in (_PTX_ISA, _PTX_TARGET, _PTX_RELEASE))
    if not isa or not target:
        raise NotRead("is no PTX: it lacks .version or .target")
    arch = target[1].decode()
    return CodeFile(
        path=path,
        kind="ptx",
        size=size,
        code=DeviceCode(ptx={arch: 1}),
        ptx_isa={arch: isa[1].decode()},
        build=BuildInfo(nvcc=release[1].decode() if release else None),
    )


def _release(file: Readable, survey: Survey) -> str | None:
    """Return the toolkit that made a file's first machine code, None where that does not tell."""
    piece = survey.first_sass
    if piece is None:
        return None
    try:
        if piece.is_lz4:
            packed = read_at(file, piece.offset, min(piece.size, _PACKED_BYTES))
            return cubin.read(io.BytesIO(lz4.head(packed, elf.HEADER_BYTES))).release
        return cubin.read(Window(file, piece.offset, piece.size)).release
    except NotRead:
        return None  # packed by Zstandard, or by LZ4 from ABI version 8


_Look = Callable[[Readable, str, int], CodeFile | None]
_FORMATS: tuple[tuple[bytes, Kind, _Look], ...] = (
    (b"\x7fELF", "elf", _read_elf),
    (fatbin.MAGIC, "fatbin", _read_fatbin),
    (pe.MAGIC, "pe", _read_pe),
)
