"""Every kind of file that holds device code, and what it says of its build."""

import io
import struct

import pytest

from volta_doctor.arch import ar, build_info, code, cubin, lz4
from volta_doctor.arch.model import BuildInfo
from volta_doctor.arch.streams import Deadline
from volta_doctor.facts.elf import NotRead
from volta_doctor.facts.fatbin import DeviceCode


def read(content, name="x"):
    return list(code.read(io.BytesIO(content), name, len(content), Deadline(10)))


def read_one(content, name="x"):
    (found,) = read(content, name)
    assert not found.problem
    return found


@pytest.mark.parametrize(
    ("name", "arch", "release"),
    [
        ("cuda-11.8-sm_70.cubin", "70", "11.8"),
        ("cuda-12.8-sm_100a.cubin", "100a", "12.8"),
        ("cuda-13.0-sm_90a.cubin", "90a", "13.0"),  # its flags say 90
    ],
)
def test_cubins_of_both_abis(data, name, arch, release):
    found = read_one((data / "device_code" / name).read_bytes())
    assert (found.kind, found.code, found.build.nvcc) == (
        "cubin",
        DeviceCode(sass={arch: 1}),
        release,
    )


@pytest.mark.parametrize(
    ("abi_version", "flags", "arch"),
    [(7, 0x460546, "70"), (7, 0x5A0D5A, "90a"), (8, 0x6004B04, "75"), (8, 0x600640A, "100a")],
)
def test_a_cubin_that_has_flags_and_no_note(elf_file, abi_version, flags, arch):
    plain = bytearray(elf_file())
    plain[8] = abi_version
    struct.pack_into("<H", plain, 18, 190)
    struct.pack_into("<I", plain, 48, flags)
    assert cubin.read(io.BytesIO(plain)) == (arch, None)


def test_ptx(data):
    text = (data / "device_code/cuda-11.8.ptx").read_bytes()
    found = read_one(text, "a.ptx")
    assert (found.kind, found.code, found.ptx_isa, found.build.nvcc) == (
        "ptx",
        DeviceCode(ptx={"70": 1}),
        {"70": "7.8"},
        "11.8",
    )
    family = text.replace(b"sm_70", b"sm_100f, debug").replace(b"7.8", b"8.8")
    assert read_one(family, "a.ptx").ptx_isa == {"100f": "8.8"}
    assert "no PTX" in read(b"// .version 8.0 .target sm_70\n", "a.ptx")[0].problem
    assert read(text, "a.txt") == []


def test_a_fat_binary_on_its_own(data):
    found = read_one((data / "device_code/cuda-11.8.fatbin").read_bytes())
    assert (found.kind, found.ptx_isa, found.build.nvcc) == ("fatbin", {"80": "7.8"}, "11.8")
    assert found.code == DeviceCode(sass={"70": 1, "80": 1}, ptx={"80": 1})


def test_a_shared_object(data):
    found = read_one((data / "device_code/cuda-11.8-linked.elf").read_bytes())
    assert found.code == DeviceCode(sass={"70": 3, "80": 3}, ptx={"70": 2})
    assert found.ptx_isa == {"70": "7.8"}
    assert found.needs == ["libcudart.so.11.0", "libc.so.6"]
    assert found.build == BuildInfo(nvcc="11.8", glibc="2.2.5")


def test_machine_code_packed_by_lz4_tells_its_release(data):
    assert read_one((data / "device_code/cuda-11.8-relocatable.elf").read_bytes()).build == (
        BuildInfo(nvcc="11.8")
    )


def test_lz4():
    block = b"\xff\x070123456789abcdefghijab\x02\x00\xff\x18\xa00123456789"  # of lz4 1.9
    whole = b"0123456789abcdefghij" + b"ab" * 150 + b"0123456789"
    assert [lz4.head(block, size) for size in (5, 64, len(whole))] == [
        whole[:5],
        whole[:64],
        whole,
    ]
    with pytest.raises(NotRead):
        lz4.head(block, len(whole) + 1)


def versions(*wanted):
    """Return .gnu.version_r and .dynstr of a file that asks libc for these versions."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in wanted)
    rows = [struct.pack("<HHIII", 1, len(wanted), 0, 16, 0)]
    for name in wanted:
        following = 16 if name != wanted[-1] else 0
        rows.append(struct.pack("<IHHII", 0, 0, 2, strings.index(name.encode()), following))
    return {".gnu.version_r": b"".join(rows), ".dynstr": strings}


def test_versions_that_are_asked_for(elf_file):
    wanted = versions("GLIBC_2.4", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.9", "CXXABI_1.3.13")
    sections = {**wanted, ".dynstr": wanted[".dynstr"] + b"libcudart.so.12\0"}
    needed = struct.pack("<qQ", 1, len(wanted[".dynstr"]))
    found = read_one(elf_file({**sections, ".dynamic": needed}), "m.abi3.so")
    assert found.needs == ["libcudart.so.12"]
    assert found.build == BuildInfo(glibc="2.34", glibcxx="3.4.9", cxxabi="1.3.13", python="abi3")


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", False),
        (
            "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcE",
            True,
        ),
        ("_ZN2at4_ops3add4callERKNS_6TensorES4_", None),
        ("_ZN4mine3runERKSs", None),
    ],
)
def test_the_abi_with_which_torch_is_called(elf_file, symbol, abi):
    found = read_one(elf_file(needed=["libc10_cuda.so", symbol]))
    assert found.build.torch_cxx11_abi is abi


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("_C.cpython-311-x86_64-linux-gnu.so", "cp311"),
        ("_C.cpython-313t-x86_64-linux-gnu.so", "cp313t"),
        ("_C.abi3.so", "abi3"),
        ("_C.cp312-win_amd64.pyd", "cp312"),
        ("libtorch_cuda.so", None),
    ],
)
def test_the_python_of_a_module(name, tag):
    assert build_info.python_tag(name) == tag


def test_what_is_of_no_interest(elf_file):
    assert read(elf_file(needed=["libc.so.6"])) == []
    assert read(elf_file(bits=32)) == []
    for text in (b"", b"\x7f", b"MZ", b"MZ" + b"a" * 100, b"GROUP ( libm.so )", bytes(4096)):
        assert read(text) == []


def member(name, content, size=None):
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size or len(content):<10}`\n"
    return header.encode() + content + b"\n" * (len(content) % 2)


LONG = "a_member_whose_name_does_not_fit.o"


@pytest.mark.parametrize(
    ("system", "rows"),
    [
        ("GNU", [("/", b"odd"), ("//", f"{LONG}/\n".encode()), ("/0", None), ("b.o/", None)]),
        ("Microsoft", [("/", b""), ("/", b""), ("//", f"{LONG}\0".encode()), ("/0", None)]),
        ("BSD", [("__.SYMDEF", b"odd"), (f"#1/{len(LONG) + 2}", f"{LONG}\0\0".encode())]),
    ],
)
def test_static_archives(data, system, rows):
    content = (data / "device_code/cuda-11.8-relocatable.elf").read_bytes()
    archive = ar.MAGIC
    for name, given in rows:
        whole = given + content if name.startswith("#1/") else content if given is None else given
        archive += member(name, whole)
    found = read(archive, "lib.a")
    names = [f"lib.a!{LONG}", "lib.a!b.o"][: 2 if system == "GNU" else 1]
    assert [file.path for file in found] == names
    assert all(file.code == DeviceCode(sass={"70": 1}) and not file.problem for file in found)


def test_an_archive_of_nvidias_counts_as_one(data, fat_binary, elf_file):
    newer = elf_file({".nv_fatbin": fat_binary((2, 80), (1, 80))})
    cubin = (data / "device_code/cuda-11.8-sm_70.cubin").read_bytes()
    archive = ar.MAGIC + member("a.o/", newer) + member("b.o/", cubin) + member("c.o/", newer)
    found = read_one(archive, "/cuda/lib64/libcublas_static.a")
    assert (found.path, found.kind) == ("/cuda/lib64/libcublas_static.a", "archive")
    assert (found.code.sass, found.code.ptx) == ({"70": 1, "80": 2}, {"80": 2})
    assert (found.ptx_isa.keys(), found.build.nvcc) == ({"80"}, "11.8")
    assert len(read(archive, "libcublas_of_ours.a")) == 1  # by its glob
    assert len(read(archive, "libours.a")) == 3
    cut = read(archive[:-200], "libcublas_static.a")
    assert cut[0].problem.startswith("libcublas_static.a: it is cut short")


def test_an_archive_cut_short_keeps_what_it_has(data):
    content = (data / "device_code/cuda-11.8-sm_70.cubin").read_bytes()
    archive = ar.MAGIC + member("a.cubin/", content) + member("b.cubin/", content)
    first, last = read(archive[:-100], "lib.a")
    assert (first.path, first.code.sass) == ("lib.a!a.cubin", {"70": 1})
    assert (last.path, last.kind) == ("lib.a", "archive")
    assert last.problem == f"it is cut short: b.cubin/ has {len(content)} bytes at 2920"


def image(sections, needs, bits=64):
    """Return a Windows DLL with these sections, the last of which names its libraries."""
    names = b"".join(name.encode() + b"\0" for name in needs)
    base, rows, at = 0x1000, b"", 20 * (len(needs) + 1)
    for name in needs:
        rows += struct.pack("<12xI4x", base + at)
        at += len(name) + 1
    content = {".idata": rows + bytes(20) + names, **sections}
    optional = struct.pack("<H", 0x20B if bits == 64 else 0x10B).ljust(112, b"\0")
    optional += struct.pack("<8xII", base, 40).ljust(128, b"\0")
    body, table = b"", b""
    start = 64 + 24 + len(optional) + 40 * len(content)
    for name, data_ in content.items():
        place = (name.encode(), len(data_), base, len(data_) + 8, start + len(body))
        table += struct.pack("<8sIIII16x", *place)
        body += data_ + bytes(8)
        base += 0x1000000
    header = struct.pack("<4sHH12xHH", b"PE\0\0", 0x8664, len(content), len(optional), 0x2022)
    return b"MZ".ljust(60, b"\0") + struct.pack("<I", 64) + header + optional + table + body


def test_a_windows_dll(data, fat_binary):
    fat = (data / "device_code/cuda-11.8.fatbin").read_bytes()
    sections = {".text": bytes(40), ".nv_fatb": fat}
    found = read_one(image(sections, ["cudart64_110.dll", "KERNEL32.dll"]), "x.cp311-win_amd64.pyd")
    assert (found.kind, found.needs) == ("pe", ["cudart64_110.dll", "KERNEL32.dll"])
    assert found.code == DeviceCode(sass={"70": 1, "80": 1}, ptx={"80": 1})
    assert found.build == BuildInfo(nvcc="11.8", python="cp311")
    assert read_one(image({"__nv_rel": fat_binary((2, 75))}, [])).code.sass == {"75": 1}
    assert read(image({}, ["KERNEL32.dll"])) == []
    assert read(image(sections, [], bits=32)) == []
    lost = image({}, ["cudart64_110.dll"]).replace(struct.pack("<I", 0x1000 + 40), b"\0\0\0\x7f")
    assert "where it has no section" in read(lost)[0].problem
