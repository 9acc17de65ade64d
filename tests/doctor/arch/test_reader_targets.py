"""Targets: directories, environments, wheels and processes; links, pipes and what is not there."""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import msgspec
import pytest

from volta_doctor.arch import reader, streams
from volta_doctor.arch.model import Scan
from volta_doctor.arch.reader import scan
from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.probe import NotHere, Probe


@pytest.fixture
def code_70(data):
    return (data / "device_code/cuda-11.8-sm_70.cubin").read_bytes()


@pytest.fixture
def linked(data):
    return (data / "device_code/cuda-11.8-linked.elf").read_bytes()


def test_a_directory(host, code_70, linked):
    probe = host(
        files={
            "/d/lib/libx.so.1.2": linked,
            "/d/lib/libx.so.1": "-> libx.so.1.2",
            "/d/lib/libx.so": "-> libx.so.1",
            "/d/bin/run": linked.replace(b"sm_70", b"sm_71"),
            "/d/cache/k.cubin": code_70,
            "/d/cache/k.json": "{}",
            "/d/.git/k.cubin": code_70,
            "/d/up": "-> ..",
            "/d/gone.so": "-> nowhere.so",
            "/d/loop.so": "-> loop.so",
        }
    )
    os.mkfifo(probe.path("/d/pipe.so"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(probe.path("/d/s")))
        found = scan(probe, "/d")
    assert (found.kind, found.looked_at) == ("directory", 3)
    paths = [file.path for file in found.files]
    assert len(paths) == 3
    assert paths[:2] == ["/d/bin/run", "/d/cache/k.cubin"]
    assert paths[2].startswith("/d/lib/libx.so")  # once, by whichever name
    assert found.unread == []  # no file, no code


def test_a_relative_path_is_shown_as_it_was_given(tmp_path, monkeypatch, code_70):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/k.cubin").write_bytes(code_70)
    monkeypatch.chdir(tmp_path)
    assert [file.path for file in scan(Probe(), "d/").files] == ["d/k.cubin"]
    assert [file.path for file in scan(Probe(), "d/k.cubin").files] == ["d/k.cubin"]


def test_names_that_are_no_text(tmp_path, code_70):
    (tmp_path / "k\udcff.cubin").write_bytes(code_70)
    (tmp_path / "\udcff.so").write_bytes(b"!<arch>\nx")
    (tmp_path / "l\udcff.whl").write_bytes(b"PK")
    found = msgspec.json.decode(msgspec.json.encode(scan(Probe(), str(tmp_path))), type=Scan)
    assert {file.path.rsplit("/", 1)[1] for file in found.files} == {"k\ufffd.cubin", "\ufffd.so"}
    assert found.unread[0].startswith(f"{tmp_path}/l\ufffd.whl: it has no table of contents")


def test_an_environment(host, code_70):
    files = {"/v/pyvenv.cfg": "version = 3.11", "/v/lib/python3.11/site-packages/k.cubin": code_70}
    assert scan(host(files=files), "/v").kind == "venv"


def test_what_is_not_there(host):
    with pytest.raises(NotHere, match="/d: No such file"):
        scan(host(), "/d")
    with pytest.raises(NotHere, match="999999999: there is no such process"):
        scan(host(), "999999999")
    probe = host(files={"/d": None})
    os.mkfifo(probe.path("/d/pipe"))
    assert scan(probe, "/d/pipe").unread == ["/d/pipe: not a file"]


def test_what_the_kernel_makes_up_is_not_read(tmp_path):
    assert "no program lies there" in scan(Probe(), "/proc").unread[0]
    (tmp_path / "x.so").symlink_to("/proc/kmsg")
    (tmp_path / "y.so").symlink_to("/sys/kernel/notes")
    found = scan(Probe(), str(tmp_path))
    assert (found.looked_at, found.files, found.unread) == (0, [], [])


def test_a_thousand_levels(tmp_path, code_70):
    here = os.getcwd()  # noqa: PTH109
    os.chdir(tmp_path)
    try:
        for _ in range(1500):
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
        with open("k.cubin", "wb") as file:  # noqa: PTH123
            file.write(code_70)
    finally:
        os.chdir(here)
    found = scan(Probe(), str(tmp_path))
    assert [file.code for file in found.files] == [DeviceCode(sass={"70": 1})]
    subprocess.run(["rm", "-r", str(tmp_path / "d")], check=True)


def test_what_this_user_may_not_read(code_70):
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        directory.chmod(0o755)
        (directory / "closed").mkdir(mode=0)
        (directory / "k.cubin").write_bytes(code_70)
        (directory / "k.cubin").chmod(0)
        if user == 0:
            os.seteuid(65534)  # root may read everything
        try:
            found = scan(Probe(), place)
        finally:
            os.seteuid(user)
    assert found.unread == [
        f"{place}/k.cubin: Permission denied",
        f"{place}/closed: Permission denied",
    ]


def test_a_thin_archive(host, linked):
    header = b"".join(
        f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{size:<10}`\n".encode() + content
        for name, size, content in [
            ("//", 24, b"obj/linked.o/\nlost.o/\n\n\n"),
            ("/0", len(linked), b""),
            ("/14", 5, b""),
        ]
    )
    probe = host(files={"/d/lib.a": b"!<thin>\n" + header, "/d/obj/linked.o": linked})
    whole, lost = scan(probe, "/d/lib.a").files
    assert (whole.path, whole.code.sass) == ("/d/lib.a!obj/linked.o", {"70": 3, "80": 3})
    assert (lost.path, lost.problem) == (
        "/d/lib.a!lost.o",
        "/d/lost.o: No such file or directory",
    )


@pytest.fixture
def wheel(tmp_path, linked, code_70):
    path = tmp_path / "x-1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/libx.so", linked, zipfile.ZIP_DEFLATED)
        archive.writestr("x/stored.cubin", code_70, zipfile.ZIP_STORED)
        archive.writestr("x/packed.cubin", code_70, zipfile.ZIP_LZMA)
        archive.writestr("x/__init__.py", "print()")
        archive.writestr("x/inner.zip", b"PK")
        archive.mkdir("x/d") if sys.version_info >= (3, 11) else None
    return path


def test_a_wheel_is_read_in_place(wheel, monkeypatch):
    opened = []

    def watch(event, args):
        if event == "open" and watching:
            opened.append((str(args[0]), args[2]))

    watching = True
    sys.addaudithook(watch)
    try:
        found = scan(Probe(), str(wheel))
    finally:
        watching = False
    assert opened
    assert not [path for path, flags in opened if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)]
    assert (found.kind, found.looked_at) == ("wheel", 2)
    assert {file.path: file.code.sass for file in found.files} == {
        f"{wheel}!x/libx.so": {"70": 3, "80": 3},
        f"{wheel}!x/stored.cubin": {"70": 1},
    }
    assert found.unread == [
        f"{wheel}!x/packed.cubin: it is packed by method 14, which is not read",
        f"{wheel}!x/inner.zip: it is an archive in an archive, which is not opened",
    ]


def test_wheels_of_a_directory(wheel):
    found = scan(Probe(), str(wheel.parent))
    assert (found.kind, len(found.files)) == ("directory", 2)


@pytest.mark.parametrize("marks", [2, 4, 256])
def test_a_deflated_member_is_read_from_anywhere(tmp_path, monkeypatch, marks):
    import random

    monkeypatch.setattr(streams, "_MARK_BYTES", 1 << 19)
    monkeypatch.setattr(streams, "_MARKS", marks)
    chance = random.Random(1)
    words = [chance.randbytes(64) for _ in range(500)]
    whole = b"".join(chance.choices(words, k=80_000))  # 5 MB of 1.5
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", whole)
        info = archive.getinfo("a")
    with path.open("rb") as file:
        member = streams.Inflated(
            file, 30 + 1, info.compress_size, len(whole), streams.Deadline(60)
        )
        for _ in range(60):
            offset = chance.randrange(len(whole) + 10)
            size = chance.choice((1, 16, 4096, 700_000))
            member.seek(offset)
            assert member.read(size) == whole[offset : offset + size]


def test_a_process_by_its_mapped_files(host, linked):
    maps = """\
7f10-7f20 r--p 00000000 08:01 11                 /opt/v/libx.so
7f20-7f30 r-xp 00010000 08:01 11                 /opt/v/libx.so
7f30-7f40 r-xp 00000000 08:01 12                 /opt/v/old name.so (deleted)
7f40-7f50 rw-s 00000000 00:05 13                 /dev/nvidia0
7f50-7f60 rw-s 00000000 00:01 14                 /memfd:x (deleted)
7f60-7f70 rw-p 00000000 00:00 0                  [heap]
7f70-7f80 r--p 00000000 08:01 15                 /opt/v/gone.so
"""
    files = {"/proc/42/maps": maps, "/proc/42/root": "-> ../..", "/opt/v/libx.so": linked}
    found = scan(host(files=files), "42")
    assert (found.kind, found.looked_at) == ("process", 1)
    assert [file.path for file in found.files] == ["/opt/v/libx.so"]
    assert found.unread == [
        "/opt/v/old name.so: deleted or replaced since process 42 loaded it, which still runs the"
        " old",
        "/opt/v/gone.so: No such file or directory",
    ]


def test_a_file_named_like_a_process_is_a_file(host, code_70, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "42").write_bytes(code_70)
    assert scan(Probe(), "42").kind == "file"


def test_this_very_process(tmp_path, linked):
    paths = [tmp_path / "here.so", tmp_path / "gone.so"]
    maps = []
    for path in paths:
        path.write_bytes(linked)
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    paths[1].unlink()
    found = scan(Probe(), str(os.getpid()))
    assert [f.code.sass for f in found.files if f.path == str(paths[0])] == [{"70": 3, "80": 3}]
    assert [text for text in found.unread if text.startswith(f"{paths[1]}: deleted or replaced")]
    assert found.looked_at > 3


def test_a_file_server_that_does_not_answer(tmp_path, monkeypatch, code_70):
    class Slow(Probe):
        def open(self, path):
            if str(path).endswith("b.cubin"):
                time.sleep(5)
            return super().open(path)

    monkeypatch.setattr(reader, "_GRACE_S", 0.1)
    for name in ("a.cubin", "b.cubin"):
        (tmp_path / name).write_bytes(code_70 + name.encode())
    started = time.monotonic()
    found = scan(Slow(), str(tmp_path), limit=0.2)
    assert time.monotonic() - started < 2
    assert f"{tmp_path}/b.cubin, and what follows: no answer within 0.3 s" in found.unread


def test_the_time_is_over(tmp_path, code_70):
    (tmp_path / "a.cubin").write_bytes(code_70)
    found = scan(Probe(), str(tmp_path), limit=-1)
    assert found.files == []
    assert "-1 s were over; what follows was not looked at" in found.unread[0]
