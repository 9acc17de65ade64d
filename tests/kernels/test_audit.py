"""The sm_70 machine code of the kernels as users build them, against audit.yaml and the docs."""

import re
import subprocess
from dataclasses import replace

import audit
import audit_page
import limits
import pytest
import v100
import yaml
from sass import Kernel, kernels, read, short

from volta_runtime.ops.formats import FORMATS, TILE_ROWS

USAGE = """
 Function _ZN5volta12_GLOBAL__N_14gemvILi2EEEvPKf:
  REG:40 STACK:0 SHARED:512 LOCAL:0 CONSTANT[0]:380 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
# An outer loop around a copy and around the loop that multiplies, whose turn goes by a shorter way
# for odd sizes; the endless branch at the end.
SASS = """
\tcode for sm_70
\t\tFunction : _ZN5volta12_GLOBAL__N_14gemvILi2EEEvPKf
\t.headerflags    @"EF_CUDA_SM70 EF_CUDA_PTX_SM(EF_CUDA_SM70)"
        /*0000*/                   S2R R8, SR_TID.X ;                 /* 0x0000000000087919 */
                                                                      /* 0x000e620000002500 */
        /*0010*/              @!PT LDS.U.128 R4, [R8] ;               /* 0x0 */
        /*0020*/                   LDG.E.128.CONSTANT.SYS R12, [R12] ;
        /*0030*/               @P0 BRA 0x10 ;                         /* 0x0 */
        /*0040*/                   LDG.E.NA.128.SYS R12, [R12] ;
        /*0050*/               @P3 BRA 0xa0 ;
        /*0060*/                   LOP3.LUT R1, R2, 0xf, R3, 0xc0, !PT ;
        /*0070*/                   LDG.E.128.SYS R16, [R12] ;
        /*0080*/                   FFMA R1, R2.reuse, R3, R1 ;
        /*0090*/                   BRA 0xd0 ;
        /*00a0*/                   LDG.E.U16.SYS R3, [R4+0x20] ;
        /*00b0*/                   FFMA R1, R2.reuse, R3, R1 ;
        /*00c0*/               @P4 BRA 0xe0 ;
        /*00d0*/                   FFMA R1, R2.reuse, R3, R1 ;
        /*00e0*/              @!P1 BRA 0x40 ;
        /*00f0*/               @P2 BRA 0x10 ;
        /*0100*/                   EXIT ;
        /*0110*/                   BRA 0x110;
"""


def kernel(**changes):
    return replace(read(USAGE, SASS)[0], **changes)


def row(**changes):
    return {"kernel": r"gemv<(?P<m>\d)>", "does": "y = x W", "threads": "64 * m"} | changes


def test_what_cuobjdump_says_is_read():
    got = kernel()
    assert (got.name, got.registers, got.stack, got.shared, got.local) == ("gemv<2>", 40, 0, 512, 0)
    assert len(got.code) == 18
    assert (got.count("LDG"), got.count(r"LDG\S*\.128"), got.count("BRA")) == (4, 3, 7)
    assert [one.bytes for one in got.code[1:3]] == [16, 16]
    assert got.code[10].bytes == 2
    turn = [0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xD0, 0xE0]
    assert [one.address for one in got.main_loop] == turn


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("volta::(anonymous namespace)::copy(uint4*, long)", "copy"),
        (
            "void volta::(anonymous namespace)::pack<volta::Int4Zero<128> >(long)",
            "pack<Int4Zero<128>>",
        ),
        ("void volta::norm<volta::(anonymous namespace)::None, 8>(float)", "norm<None, 8>"),
        ("void volta::act<(volta::Act)1, true>(float)", "act<(Act)1, true>"),
    ],
)
def test_names_are_short(signature, name):
    assert short(signature) == name


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "warps"),
    [  # as NVIDIA's occupancy calculator says of compute capability 7.0
        (32, 0, 128, 64),
        (33, 0, 256, 48),
        (64, 0, 256, 32),
        (128, 0, 256, 16),
        (129, 0, 128, 12),
        (255, 0, 64, 8),
        (32, 0, 32, 32),  # 32 blocks
        (32, 0, 96, 63),
        (32, 48 * 1024, 256, 16),
        (32, 48 * 1024 + 1, 256, 8),
        (32, 0, 1024, 64),
        (65, 0, 1024, 0),  # no block at all
    ],
)
def test_warps_on_an_sm(registers, shared, threads, warps):
    assert v100.warps_per_sm(registers, shared, threads) == warps


def test_clocks_are_of_the_issue_and_of_the_busiest_pipe():
    loop = kernel().main_loop
    assert v100.clocks(loop) == {"issue": 8, "memory": 8, "fma": 4, "alu": 2, "control": 3}
    assert v100.weights_per_second(2) == v100.SMS * 4 * 32 * v100.CLOCK / 2
    # 64 products a clock and SM are one instruction of each scheduler every other clock.
    assert v100.multiplied_per_second("FFMA", 3) == v100.weights_per_second(2 * 3)
    assert v100.multiplied_per_second("HMMA.884", 9) == v100.multiplied_per_second("HMMA.884", 16)
    assert v100.read_per_second(4) == 1.8e12


@pytest.mark.parametrize(
    ("changes", "bounds", "told"),
    [
        ({}, {}, []),
        ({}, {"registers": 40, "warps": 48, "ldg128": "m", "stg128": 0, "hmma": 0}, []),
        ({"stack": 8}, {}, ["gemv<2>: stack 8, at most 0"]),
        ({"local": 4}, {}, ["gemv<2>: stack 4, at most 0"]),
        ({"stack": 8}, {"stack": "4 * m"}, []),
        ({}, {"registers": 39}, ["gemv<2>: registers 40, at most 39"]),
        ({}, {"warps": 49}, ["gemv<2>: warps 48, at least 49"]),
        ({}, {"dynamic": "12 * 1024 * m", "warps": 13}, ["gemv<2>: warps 12, at least 13"]),
        ({}, {"ldg128": "2 * m"}, ["gemv<2>: ldg128 3, at least 4"]),
        (
            {},
            {"stg128": 1, "hmma": 4},
            ["gemv<2>: stg128 0, at least 1", "gemv<2>: hmma 0, at least 4"],
        ),
    ],
)
def test_what_is_worse_than_its_row_is_told(changes, bounds, told):
    instances, nothing = limits.joined([kernel(**changes)], [row(**bounds)])
    assert nothing == []
    assert instances[0].faults() == told


def test_kernels_and_rows_belong_together():
    stray = kernel(name="gemv<10>")
    instances, told = limits.joined(
        [kernel(), stray], [row(), row(kernel="gone"), row(kernel="gemv<2>")]
    )
    assert [one.kernel.name for one in instances] == ["gemv<2>", "gemv<2>"]
    assert told == [
        "gone: no such kernel",
        "gemv<2>: 2 rows of audit.yaml, needs one",
        "gemv<10>: 0 rows of audit.yaml, needs one",
    ]


@pytest.mark.parametrize("wrong", [{"register": 40}, {"does": None}, {"decode": {"m": 1}}])
def test_a_row_that_says_what_nothing_reads_is_refused(monkeypatch, wrong):
    told = {name: value for name, value in row(**wrong).items() if value is not None}
    monkeypatch.setattr(limits, "_document", lambda: {"kernels": [told]})
    with pytest.raises(ValueError, match="lacks what a row needs, or has what none has"):
        limits.rows()


def test_decoding_is_measured_over_the_main_loop():
    measure = row(decode={"label": "of {m}", "m": "m", "weights": "16 * ldg128", "bits": 4})
    instances, _ = limits.joined([kernel()], [measure])
    (got,) = audit_page.decodes(instances)
    assert (got.label, got.bits, got.m, got.instructions) == ("of 2", 4, 2, 8 / 32)
    assert got.ratio == v100.weights_per_second(8 / 32) / 1.8e12
    instances, _ = limits.joined(
        [kernel()], [row(decode={"label": "", "m": 1, "weights": "ldg128 / 4", "bits": 4})]
    )
    with pytest.raises(ValueError, match=r"gemv<2>: 0\.5 weights a turn, by ldg128 / 4"):
        audit_page.decodes(instances)


def test_a_tile_has_as_many_bits_as_the_audit_says(repo):
    header = (repo / "csrc/formats.h").read_text()
    structs = dict(re.findall(r"^  X\(\d+, (\w+), ([\w<>]+)\)", header, re.M))
    bits = {
        structs[name]: 8 * row.tile_bytes / (TILE_ROWS * row.chunk) for name, row in FORMATS.items()
    }
    assert yaml.safe_load(limits.ROWS.read_text())["bits"] == bits


# --- What is built -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    try:
        return audit.build(tmp_path_factory.mktemp("sm70"))
    except audit.CannotBuildError as error:
        pytest.skip(f"no sm_70 code is made here: {error}")


@pytest.fixture(scope="module")
def found(built) -> list[Kernel]:
    return kernels(built.library, built.cuobjdump)


@pytest.mark.slow
def test_the_fat_binary_holds_sm70_code_and_ptx(built):
    def dump(option):
        command = [built.cuobjdump, option, built.library]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    files = len(list((built.library.parent / "CMakeFiles/volta_kernels.dir").rglob("*.cu.o")))
    elf, ptx = dump("-lelf").splitlines(), dump("-lptx").splitlines()
    assert len([line for line in elf if line.endswith("sm_70.cubin")]) == len(elf) == files
    assert len([line for line in ptx if line.endswith("sm_70.ptx")]) == len(ptx) == files
    assert set(re.findall(r"^\.target (\S+)", dump("-ptx"), re.M)) == {"sm_70"}


@pytest.mark.slow
def test_every_kernel_keeps_to_its_row(found):
    instances, told = limits.joined(found, limits.rows())
    assert told + [fault for instance in instances for fault in instance.faults()] == []


@pytest.mark.slow
def test_the_docs_have_what_is_built(built, found, repo):
    page = (repo / "docs/kernels.md").read_text()
    release = audit_page.release_of(page)
    if built.release != release:
        pytest.skip(f"docs/kernels.md is of nvcc {release}, here is {built.release}")
    instances, _ = limits.joined(found, limits.rows())
    again = "run: python tests/kernels/audit.py --write docs/kernels.md"
    assert audit_page.refreshed(page, instances, release) == page, again
