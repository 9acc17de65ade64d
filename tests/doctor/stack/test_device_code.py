"""Device code of ELF files: held against cuobjdump, and files that are cut short or hostile."""

import io
import random
import re
import shutil
import struct
import subprocess
import time

import pytest

from volta_doctor.facts import elf, fatbin
from volta_doctor.facts.fatbin import DeviceCode


def read(data: bytes) -> DeviceCode:
    file = io.BytesIO(data)
    return fatbin.device_code(file, elf.sections(file))


# What cuobjdump of CUDA 13 lists for these files, but for sm_100f, which it calls sm_100.
@pytest.mark.parametrize(
    ("name", "sass", "ptx"),
    [
        # two sources, linked: three regions, PTX compressed with LZ4
        ("cuda-11.8-linked.elf", {"70": 3, "80": 3}, {"70": 2}),
        # relocatable, with code for link-time optimisation, which does not count
        ("cuda-11.8-relocatable.elf", {"70": 1}, {}),
        # compressed with Zstandard; code for one chip (a) and for one family (f)
        ("cuda-13.0.elf", {"75": 1, "90a": 1, "100f": 1, "120": 1}, {"75": 1, "90a": 1, "100f": 1}),
    ],
)
def test_files_of_nvcc(data, name, sass, ptx):
    assert read((data / "device_code" / name).read_bytes()) == DeviceCode(sass=sass, ptx=ptx)


def test_libraries_that_a_file_asks_for(data):
    with (data / "device_code/cuda-11.8-linked.elf").open("rb") as file:
        assert elf.needed(file, elf.sections(file)) == ["libcudart.so.11.0", "libc.so.6"]


@pytest.mark.skipif(
    not (shutil.which("cuobjdump") and shutil.which("fatbinary")), reason="no CUDA toolkit here"
)
def test_against_cuobjdump(data):
    for name in ("cuda-11.8-linked.elf", "cuda-11.8-relocatable.elf"):
        path = data / "device_code" / name
        listed = subprocess.run(
            ["cuobjdump", "-lelf", "-lptx", path], capture_output=True, text=True, check=True
        ).stdout
        code = read(path.read_bytes())
        for counts, kind in ((code.sass, "cubin"), (code.ptx, "ptx")):
            archs = re.findall(rf"\.sm_(\w+)\.{kind}", listed)
            assert counts == {arch: archs.count(arch) for arch in archs}


def test_a_file_cut_anywhere_is_never_taken_for_whole(data):
    whole = (data / "device_code/cuda-11.8-linked.elf").read_bytes()
    for size in range(0, len(whole), 97):
        with pytest.raises(elf.NotRead):  # the section table lies at the end
            read(whole[:size])


def test_a_section_that_the_file_does_not_hold(elf_file, fat_binary):
    whole = elf_file({".nv_fatbin": fat_binary((2, 70), (2, 80))})
    assert read(whole) == DeviceCode(sass={"70": 1, "80": 1})
    end = struct.pack("<I", 80)
    cut = whole.replace(end, struct.pack("<I", 80000), 1)
    code = read(cut)
    assert code.problem.startswith("has device code at")


def test_mutated_files_end_in_time(data):
    chance = random.Random(70)
    whole = (data / "device_code/cuda-13.0.elf").read_bytes()
    started = time.monotonic()
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        file = io.BytesIO(bytes(changed))
        try:
            found = elf.sections(file)
            fatbin.device_code(file, found)
            elf.needed(file, found)
        except elf.NotRead:
            pass
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\0" * 64, ""),
        (b"no fat binary at all", "something else than fat binaries"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40), "that its section does not hold"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 16), "that its section does not hold"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64), "has device code at"),
    ],
)
def test_a_section_that_makes_no_sense(elf_file, content, problem):
    code = read(elf_file({".nv_fatbin": content}))
    assert problem in code.problem
    assert bool(code.problem) == bool(problem)


def test_the_isa_of_ptx(data):
    for name, isa in (
        ("cuda-11.8-linked.elf", {"70": "7.8"}),
        ("cuda-13.0.elf", {"75": "9.0", "90a": "9.0", "100f": "9.0"}),
    ):
        with (data / "device_code" / name).open("rb") as file:
            assert fatbin.survey(file, elf.sections(file)).ptx_isa == isa


def test_code_of_a_kind_to_come(elf_file, fat_binary):
    code = read(elf_file({".nv_fatbin": fat_binary((2, 75), (64, 75), (8, 75))}))
    assert code.sass == {"75": 1}
    assert "a kind that is not known here (64)" in code.problem


def test_code_that_is_registered_and_not_found(elf_file, fat_binary):
    elsewhere = {".nvFatBinSegment": bytes(24), ".rodata": fat_binary((2, 70))}
    assert "registers device code outside" in read(elf_file(elsewhere)).problem
    assert not read(elf_file({**elsewhere, ".nvFatBinSegment": b""}))


def test_padding_without_end(elf_file, fat_binary):
    code = read(elf_file({".nv_fatbin": fat_binary((2, 70)) + bytes((1 << 20) + 5000)}))
    assert code.sass == {"70": 1}
    assert "nothing but zeros" in code.problem


def test_as_many_sections_as_a_header_cannot_count(elf_file, fat_binary):
    whole = bytearray(elf_file({".nv_fatbin": fat_binary((2, 70))}))
    (table,) = struct.unpack_from("<Q", whole, 40)
    count, names = struct.unpack_from("<HH", whole, 60)
    struct.pack_into("<HH", whole, 60, 0, 0xFFFF)
    struct.pack_into("<Q", whole, table + 32, count)
    struct.pack_into("<I", whole, table + 40, names)
    assert read(bytes(whole)) == DeviceCode(sass={"70": 1})


def test_a_file_of_a_million_pieces_ends(elf_file, monkeypatch):
    monkeypatch.setattr(fatbin, "_PIECES", 100)
    empty = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)
    assert "more than 100" in read(elf_file({".nv_fatbin": empty * 200})).problem


def test_padding_and_several_regions(elf_file, fat_binary):
    content = fat_binary((2, 70), (1, 70)) + bytes(4200) + fat_binary((2, 70), (8, 70)) + bytes(64)
    assert read(elf_file({".nv_fatbin": content})) == DeviceCode(sass={"70": 2}, ptx={"70": 1})


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, bytes(100)])
def test_what_is_no_elf_file(data):
    with pytest.raises(elf.NotRead):
        read(data)


def test_a_32_bit_file(elf_file):
    with pytest.raises(elf.NotRead, match="no 64-bit ELF file"):
        read(elf_file(bits=32))


def test_relocatable_code_beside_executable_code_is_its_source(elf_file, fat_binary):
    # nvcc links libcudadevrt, relocatable and for every card, beside PTX alone
    both = {".nv_fatbin": fat_binary((1, 60)), "__nv_relfatbin": fat_binary((2, 70))}
    assert read(elf_file(both)) == DeviceCode(sass={}, ptx={"60": 1})
    assert read(elf_file({**both, ".nv_fatbin": b""})) == DeviceCode(sass={"70": 1})
