"""Damaged and hostile input ends in a finding, in bounded time and memory."""

import io
import struct
import time
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volta_doctor.arch import code, reader, wheel
from volta_doctor.arch.reader import scan
from volta_doctor.arch.streams import Deadline
from volta_doctor.facts import fatbin
from volta_doctor.facts.elf import NotRead
from volta_doctor.probe import Probe

fuzz = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MIB = 1 << 20
VALUES = [0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]


@pytest.fixture(scope="session")
def samples(data):
    """Files of every kind, with an archive and a wheel of them."""
    found = {path.name: path.read_bytes() for path in sorted((data / "device_code").iterdir())}
    members = b"".join(
        f"{name[:15] + '/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode()
        + content
        + b"\n" * (len(content) % 2)
        for name, content in found.items()
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in found.items():
            archive.writestr(name, content)
        archive.writestr("stored", found["cuda-13.0.elf"], zipfile.ZIP_STORED)
    return [*found.values(), b"!<arch>\n" + members, file.getvalue()]


def read_all(content):
    """Read it as a file and as a wheel; every finding must be a sentence that can be shown."""
    deadline = Deadline(20)
    file = io.BytesIO(content)
    found = list(code.read(file, "x.ptx", len(content), deadline))
    complaints = []
    try:
        for member in wheel.members(file, deadline, lambda _name: True, complaints.append):
            found += code.read(member.content, member.name, member.size, deadline)
    except NotRead as reason:
        complaints.append(str(reason))
    for one in found:
        assert one.code or one.problem or one.needs
        assert "\n" not in one.problem
    assert all(len(text) < 70_000 for text in complaints)
    return found, complaints


@fuzz
@given(pick=st.randoms(use_true_random=False), data_=st.data())
def test_changed_bytes(samples, pick, data_):
    content = bytearray(pick.choice(samples))
    changes = data_.draw(
        st.lists(
            st.tuples(st.integers(0, len(content) - 1), st.sampled_from(VALUES)),
            min_size=1,
            max_size=8,
        )
    )
    for place, value in changes:
        content[place] = value
    read_all(bytes(content))


@fuzz
@given(pick=st.randoms(use_true_random=False), data_=st.data())
def test_changed_numbers(samples, pick, data_):
    content = bytearray(pick.choice(samples))
    place = data_.draw(st.integers(0, (len(content) - 8) // 4)) * 4
    kind = data_.draw(st.sampled_from("HIQ"))
    value = data_.draw(st.sampled_from([0, 1, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 63]))
    struct.pack_into(f"<{kind}", content, place, value & (1 << 8 * struct.calcsize(kind)) - 1)
    read_all(bytes(content))


@fuzz
@given(pick=st.randoms(use_true_random=False), cut=st.floats(0, 1), moved=st.binary(max_size=40))
def test_files_cut_and_joined(samples, pick, cut, moved):
    first, second = pick.choice(samples), pick.choice(samples)
    read_all(first[: int(cut * len(first))] + moved + second[int(cut * len(second)) :])


@fuzz
@given(
    content=st.binary(max_size=300),
    magic=st.sampled_from(
        [b"\x7fELF\x02\x01", b"MZ", b"PK\x03\x04", b"!<arch>\n", b"!<thin>\n", fatbin.MAGIC, b""]
    ),
)
def test_anything_behind_a_magic(content, magic):
    read_all(magic + content)


def zipped(tmp_path, content, declared=None, name="x.so"):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    if declared is not None:
        data = bytearray(path.read_bytes())
        place = data.index(b"PK\x01\x02")
        struct.pack_into("<I", data, place + 24, declared)
        path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("size", "declared", "problem"),
    [
        (64 * MIB, None, "a bomb, not unpacked"),
        (64 * MIB, 4096, "unpacks to more than the 4096 bytes that its archive declares"),
        (4096, MIB, "is cut short"),
        (4096, 0xFFFFFFF0, "a bomb, not unpacked"),
    ],
)
def test_zip_bombs(tmp_path, size, declared, problem):
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<Q10x3H", 1 << 19, 64, 3, 2)
    whole = head + bytes(size)
    path = zipped(tmp_path, whole, declared)
    tracemalloc.start()
    started = time.monotonic()
    found = scan(Probe(), str(path))
    assert time.monotonic() - started < 5
    assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    tracemalloc.stop()
    told = [*(file.problem for file in found.files), *found.unread]
    assert problem in " ".join(told), told


def test_a_table_of_contents_too_large_for_memory(tmp_path):
    path = zipped(tmp_path, b"")
    end = path.read_bytes()[-22:]
    with path.open("wb") as file:
        file.truncate(600 * MIB)
        file.seek(0)
        file.write(b"PK\x03\x04")
        file.seek(600 * MIB)
        file.write(end[:12] + struct.pack("<II", 599 * MIB, MIB) + end[20:])
    tracemalloc.start()
    found = scan(Probe(), str(path))
    assert tracemalloc.get_traced_memory()[1] < 32 * MIB
    tracemalloc.stop()
    assert "its table of contents takes" in found.unread[0]


def test_an_encrypted_member_and_one_that_lies_elsewhere(tmp_path):
    path = zipped(tmp_path, b"x" * 100)
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 8] |= 1
    path.write_bytes(data)
    assert scan(Probe(), str(path)).unread == [f"{path}!x.so: it is encrypted"]
    data[place + 8] &= ~1
    data[place + 42] = 7
    path.write_bytes(data)
    assert "does not lie where" in scan(Probe(), str(path)).unread[0]


def test_sparse_files_of_a_terabyte(tmp_path, elf_file, fat_binary):
    whole = elf_file({".nv_fatbin": fat_binary((2, 70)), ".text": bytes(8)})
    for name, offset in (("table.so", 40), ("padding.fatbin", None), ("lib.a", None)):
        with (tmp_path / name).open("wb") as file:
            if offset:
                file.write(whole[:offset] + struct.pack("<Q", 1 << 39) + whole[offset + 8 :])
            else:
                file.write(fat_binary((2, 70)) if name.endswith("fatbin") else b"!<arch>\n")
            file.truncate(1 << 40)
    started = time.monotonic()
    found = {file.path.rsplit("/", 1)[1]: file for file in scan(Probe(), str(tmp_path)).files}
    assert time.monotonic() - started < 5
    assert "no section names" in found["table.so"].problem
    assert found["padding.fatbin"].code.sass == {"70": 1}
    assert "nothing but zeros" in found["padding.fatbin"].problem
    assert "else than the header of a member at 8" in found["lib.a"].problem


def test_a_file_that_shrinks_while_it_is_read(data):
    whole = (data / "device_code/cuda-11.8-linked.elf").read_bytes()

    class Shrinking(io.BytesIO):
        def seek(self, offset, whence=0):
            self.truncate(max(64, len(self.getvalue()) - 3000))
            return super().seek(offset, whence)

    (found,) = code.read(Shrinking(whole), "x", len(whole), Deadline(10))
    assert "is cut short" in found.problem


def test_a_disk_that_fails(data):
    class Failing(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    (found,) = code.read(Failing(b""), "x", 100, Deadline(10))
    assert found.problem == "it cannot be read at 0: [Errno 5] Input/output error"


def test_more_files_than_fit(tmp_path, data, monkeypatch):
    monkeypatch.setattr(reader, "_FILES", 2)
    monkeypatch.setattr(reader, "_UNREAD", 2)
    for number in range(4):
        (tmp_path / f"{number}.cubin").write_bytes(
            (data / "device_code/cuda-11.8-sm_70.cubin").read_bytes()
        )
        (tmp_path / f"{number}.whl").write_bytes(b"PK")
    found = scan(Probe(), str(tmp_path))
    assert len(found.files) == 2
    assert found.unread[-1].endswith("1 more file could not be read")


def test_a_program_without_sections(elf_file):
    plain = bytearray(elf_file())
    struct.pack_into("<H", plain, 60, 0)
    struct.pack_into("<Q", plain, 40, 0)
    (found,) = code.read(io.BytesIO(plain), "x", len(plain), Deadline(10))
    assert "has no section table that makes sense" in found.problem


def test_it_is_not_deflated(tmp_path):
    path = zipped(tmp_path, zlib.compress(bytes(range(256)) * 40))
    data = bytearray(path.read_bytes())
    data[40:60] = b"\xff" * 20
    path.write_bytes(data)
    assert "cannot be unpacked" in scan(Probe(), str(path)).files[0].problem


def test_devices_are_never_opened():
    assert scan(Probe(), "/dev/null").unread == ["/dev/null: not a file"]
