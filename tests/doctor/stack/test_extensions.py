"""Extensions in environments and in torch's cache of what it compiled."""

import os

import pytest

from volta_doctor.facts import so_archs
from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.facts.serve import Server
from volta_doctor.probe import CannotLook

SITE = "/opt/v/lib/python3.11/site-packages"
ENV = {"/opt/v/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n", f"{SITE}/x": None}
SERVER = Server(
    name="vllm.service", engine="vllm", source="", prefix="/opt/v", env={}, home="/home/u"
)
CACHE = "/home/u/.cache/torch_extensions"


def test_what_is_of_interest(host, serving, elf_file, fat_binary):
    serving(SERVER)
    volta, plain = elf_file({".nv_fatbin": fat_binary((2, 70))}), elf_file({".text": b"x"})
    files = ENV | {
        f"{SITE}/vllm/_C.abi3.so": volta,
        f"{SITE}/vllm/cumem.abi3.so": elf_file(needed=["libc.so.6", "libcudart.so.13"]),
        f"{SITE}/numpy/_core.cpython-311-x86_64-linux-gnu.so": plain,
        f"{SITE}/numpy.libs/libopenblas.so.0": plain,
        # made for several Pythons, this one among them
        f"{SITE}/many/m.cpython-310-x86_64-linux-gnu.so": plain,
        f"{SITE}/many/m.cpython-311-x86_64-linux-gnu.so": plain,
        f"{SITE}/old/o.cpython-310-x86_64-linux-gnu.so": plain,
        f"{SITE}/broken/b.so": volta[:-9],
        f"{SITE}/text/t.so": "INPUT(-lx)\n",
        # judged by their versions
        f"{SITE}/torch/lib/libtorch_cuda.so": volta,
        f"{SITE}/nvidia/cublas/lib/libcublas.so.12": volta,
        f"{SITE}/vllm/torch/_t.so": volta,
        f"{CACHE}/py311_cu128/gates/gates.so": volta,
        f"{CACHE}/py311_cu128/gates/build.ninja": "",
        f"{CACHE}/py311_cu128/gates.stale-77/gates.so": volta,
        "/home/u/.cache/flashinfer/0.5.3/80/cached_ops/op/op.so": volta,
        "/home/u/.cache/flashinfer/0.5.3/80/cached_ops/op/build.ninja": "",
    }
    facts = so_archs.collect(host(files=files))
    assert facts.unread == {}
    assert facts.looked_at == 11
    found = {item.path.removeprefix(f"{SITE}/"): item for item in facts.objects}
    assert {path: item.problem for path, item in found.items() if item.problem} == {
        "broken/b.so": "it is cut short: 192 bytes at 174 are not there"
    }
    assert found["vllm/_C.abi3.so"].code == DeviceCode(sass={"70": 1})
    assert found["vllm/cumem.abi3.so"].runtime == "libcudart.so.13"
    assert found["old/o.cpython-310-x86_64-linux-gnu.so"].tag == "cp310"
    assert found[f"{CACHE}/py311_cu128/gates/gates.so"].env == f"{CACHE}/py311_cu128"
    assert len(found) == 6
    assert "vllm/torch/_t.so" in found


def test_an_editable_package_lies_elsewhere(host, serving, elf_file, fat_binary):
    serving(SERVER)
    info = f"{SITE}/vllm-1.dist-info"
    files = ENV | {
        f"{info}/METADATA": "Name: vllm\nVersion: 1\n",
        f"{info}/direct_url.json": '{"url": "file:///src/vllm", "dir_info": {"editable": true}}',
        "/src/vllm/vllm/_C.abi3.so": elf_file({".nv_fatbin": fat_binary((2, 80))}),
    }
    (item,) = so_archs.collect(host(files=files)).objects
    assert (item.path, item.env) == ("/src/vllm/vllm/_C.abi3.so", "/opt/v")


def test_what_is_not_looked_at_is_told(host, serving, elf_file, monkeypatch):
    serving(SERVER)
    monkeypatch.setattr(so_archs, "LIMIT_S", -1.0)
    files = ENV | {f"{SITE}/a.so": elf_file(), f"{SITE}/b.so": elf_file()}
    facts = so_archs.collect(host(files=files))
    assert facts.looked_at == 0
    assert facts.unread == {"/opt/v": [f"{SITE}/a.so and what follows: -1 s were over"]}


def test_a_directory_that_may_not_be_read(host, serving, monkeypatch):
    serving(SERVER)
    probe = host(files=ENV | {f"{SITE}/x/y.so": ""})
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("/x"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert so_archs.collect(probe).unread == {"/opt/v": [f"{SITE}/x: Permission denied"]}


def test_without_an_answer_about_environments_there_is_none(host, serving):
    serving(problem="12 processes are hidden")
    with pytest.raises(CannotLook, match="12 processes are hidden"):
        so_archs.collect(host())
