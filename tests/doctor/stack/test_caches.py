"""Caches of compiled code: which there are, and what is told of each."""

import json
import os
import socket

import pytest

from volta_doctor.facts import ext_cache
from volta_doctor.facts.ext_cache import entries
from volta_doctor.facts.ext_cache.kinds import KINDS
from volta_doctor.facts.serve import Server

SERVER = Server(
    name="vllm.service", engine="vllm", source="", prefix="/opt/v", env={}, home="/home/u", user="u"
)
TORCH = "/home/u/.cache/torch_extensions"
PASSWD = "root:x:0:0::/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n"


def build(path, *files, library=True):
    """The files of an extension's build directory."""
    names = ["build.ninja", ".ninja_log", *files] + ["x.so"] * library
    return {f"{path}/{name}": "" for name in names}


def test_caches_of_servers_and_of_this_shell(host, serving):
    serving(
        SERVER,
        Server(
            name="b.service",
            engine="sglang",
            source="",
            prefix="/opt/b",
            env={"TORCH_EXTENSIONS_DIR": "/srv/ext"},
            home="/home/b",
        ),
        Server(name="c.service", engine="tgi", source="", prefix="/opt/c", env_problem="hidden"),
    )
    files = {
        **build(f"{TORCH}/py311_cu128/gates", "lock"),
        **build(f"{TORCH}/py310_cu121/moe", library=False),
        f"{TORCH}/notes.txt": "",
        f"{TORCH}/py311_cu128/no_build/x.so": "",
        f"{TORCH}/py311_cu128/begun/lock": "",
        **build("/srv/ext/gates"),
        **build("/root/.cache/torch_extensions/py39_cpu/x"),
    }
    probe = host(files=files)
    for name, time in (("x.so", 1000), ("lock", 2000)):
        os.utime(probe.path(f"{TORCH}/py311_cu128/gates/{name}"), (time, time))
    facts = ext_cache.collect(probe)
    assert facts.problem == "c.service: hidden"
    assert {cache.path: (cache.root, cache.tag, cache.used_by) for cache in facts.caches} == {
        "/root/.cache/torch_extensions/py39_cpu": (
            "/root/.cache/torch_extensions",
            "py39_cpu",
            ["this shell"],
        ),
        f"{TORCH}/py310_cu121": (TORCH, "py310_cu121", ["vllm.service"]),
        f"{TORCH}/py311_cu128": (TORCH, "py311_cu128", ["vllm.service"]),
        "/srv/ext": ("", None, ["b.service"]),
    }
    of = {cache.path: cache for cache in facts.caches}
    begun, gates = of[f"{TORCH}/py311_cu128"].extensions
    assert (gates.name, gates.built, gates.locked, gates.begun) == ("gates", 1000, 2000, False)
    assert (begun.name, begun.built, begun.locked is None) == ("begun", None, False)
    (moe,) = of[f"{TORCH}/py310_cu121"].extensions
    assert (moe.built, moe.locked, moe.begun) == (None, None, True)
    assert gates.inode == probe.path(f"{TORCH}/py311_cu128/gates").stat().st_ino


def test_names_that_no_tool_gives_and_links(host, serving):
    serving(SERVER)
    cache = f"{TORCH}/py311_cu128"
    files = {
        **build(f"{cache}/plain"),
        **build(f"{cache}/with space"),
        **build(f"{cache}/with\nnewline"),
        **build(f"{cache}/\x1b[2Jescape"),
        **build(f"{cache}/gates.stale-4711"),
        **build("/elsewhere/linked"),
    }
    probe = host(files=files)
    probe.path(f"{cache}/linked").symlink_to(probe.path("/elsewhere/linked"))
    (found,) = ext_cache.collect(probe).caches
    assert [(e.name, e.inode is None) for e in found.extensions] == [
        ("linked", True),
        ("plain", False),
    ]
    assert found.aside == ["gates.stale-4711"]


def test_a_whole_tag_that_was_set_aside(host, serving):
    serving(SERVER)
    probe = host(files=build(f"{TORCH}/py310_cu121.stale-77/gates"))
    (found,) = ext_cache.collect(probe).caches
    assert (found.path, found.tag, found.aside) == (TORCH, None, ["py310_cu121.stale-77"])


def test_a_cache_inside_a_container(host, serving):
    root = "/proc/4711/root"
    serving(
        Server(
            name="vllm",
            engine="vllm",
            source="",
            prefix=f"{root}/usr",
            container="0123456789ab",
            pids=[4711],
            env={"XDG_CACHE_HOME": "/cache"},
            home=f"{root}/root",
        )
    )
    files = {
        **build(f"{root}/cache/torch_extensions/py312_cu128/x"),
        **build(f"{root}/root/.cache/tvm-ffi/x"),
    }
    found = {c.kind: c for c in ext_cache.collect(host(files=files)).caches}
    assert found["torch_extensions"].path == f"{root}/cache/torch_extensions/py312_cu128"
    assert found["tvm-ffi"].path == f"{root}/root/.cache/tvm-ffi"
    assert (found["tvm-ffi"].owner, found["tvm-ffi"].users) == (None, [])


def test_every_kind_in_its_place(host, serving):
    serving(SERVER)
    home = "/home/u"
    metadata = {"triton_version": "3.5.0", "target": {"backend": "cuda", "arch": 80}}
    cubin = f"{home}/.triton/cache/ABCDEFG"
    files = {
        "/etc/passwd": PASSWD,
        **build(f"{home}/.cache/tvm-ffi/k_0a1b__arch_9.0__tvmffi_0.1.11"),
        **build(f"{home}/.cache/tvm-ffi/mine_0a1b", library=False),
        **build(f"{home}/.cache/flashinfer/0.6.1/75_80_90a/cached_ops/op", "lock"),
        **build(f"{home}/.cache/flashinfer/80/cached_ops/old"),
        f"{home}/.cache/flashinfer/0.6.1/75_80_90a/cached_ops/tmp/op.lock": "",
        f"{cubin}/__grp__k.json": "{}",
        f"{cubin}/k.json": json.dumps(metadata),
        f"{home}/.triton/cache/HALF/k.json": '{"trit',
        f"{home}/.triton/cache/CPU/k.json": '{"triton_version": "3", "target": "cpu"}',
        f"{home}/.cache/vllm/torch_compile_cache/0123456789/rank_0_0/x": "",
        "/tmp/torchinductor_u/ab/x.py": "",
        "/tmp/torchinductor_other/ab/x.py": "",
    }
    caches = ext_cache.collect(host(files=files)).caches
    told = {c.path.removeprefix(home): (c.kind, c.version, c.archs, c.count) for c in caches}
    assert told == {
        "/.cache/tvm-ffi": ("tvm-ffi", None, [], 0),
        "/.cache/flashinfer/0.6.1/75_80_90a/cached_ops": (
            "flashinfer",
            "0.6.1",
            ["75", "80", "90a"],
            0,
        ),
        "/.cache/flashinfer/80/cached_ops": ("flashinfer", None, ["80"], 0),
        "/.triton/cache": ("triton", None, [], 3),
        "/.cache/vllm/torch_compile_cache": ("vllm", None, [], 1),
        "/tmp/torchinductor_u": ("torchinductor", None, [], 1),
    }
    of = {cache.kind: cache for cache in caches}
    assert of["triton"].kernels == {"3.5.0 sm_80": 1}
    assert of["torchinductor"].newest
    sgl, mine = of["tvm-ffi"].extensions
    assert (sgl.version, sgl.arch, mine.version, mine.begun) == ("0.1.11", "9.0", None, True)
    assert sgl.locked is None


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"TRITON_CACHE_DIR": "/t"}, "/t/K/x"),
        ({"TRITON_HOME": "/t"}, "/t/.triton/cache/K/x"),
        ({"TVM_FFI_CACHE_DIR": "/t"}, "/t/K/build.ninja"),
        ({"FLASHINFER_WORKSPACE_BASE": "/t"}, "/t/.cache/flashinfer/70/cached_ops/K/build.ninja"),
        ({"VLLM_CACHE_ROOT": "/t"}, "/t/torch_compile_cache/K/x"),
        ({"XDG_CACHE_HOME": "/t"}, "/t/vllm/torch_compile_cache/K/x"),
        ({"TORCHINDUCTOR_CACHE_DIR": "/t"}, "/t/K/x"),
        ({"TMPDIR": "/t"}, "/t/torchinductor_u/K/x"),
    ],
)
def test_variables_lead_elsewhere(host, serving, env, path):
    serving(Server(**{f: getattr(SERVER, f) for f in SERVER.__struct_fields__} | {"env": env}))
    (cache,) = ext_cache.collect(host(files={path: ""}, env={"HOME": "/nowhere"})).caches
    assert path.startswith(f"{cache.path}/K/")


def test_owners(host, serving, monkeypatch):
    serving(SERVER)
    passwd = "u:x:1000:1000::/home/u:/bin/sh\nv:x:1001:1001::/home/v:/bin/sh\n"
    cache = f"{TORCH}/py311_cu128"
    probe = host(files={"/etc/passwd": passwd, **build(f"{cache}/own"), **build(f"{cache}/of_v")})
    stat = type(probe).stat

    def owned(self, path):
        status = stat(self, path)
        uid = 1001 if str(path).endswith("of_v") else 1000
        return status and os.stat_result((*status[:4], uid, *status[5:10]))

    monkeypatch.setattr(type(probe), "stat", owned)
    (found,) = ext_cache.collect(probe).caches
    assert (found.owner, [(u.server, u.account) for u in found.users]) == (
        "u",
        [("vllm.service", "u")],
    )
    assert {e.name: e.owner for e in found.extensions} == {"own": None, "of_v": "v"}


def test_who_holds_a_lock(host, serving):
    serving(SERVER)
    lock = f"{TORCH}/py311_cu128/gates/lock"
    files = {
        **build(f"{TORCH}/py311_cu128/gates", "lock"),
        "/proc/70/stat": "70 (python3) S 1",
        "/proc/70/fd/3": f"-> {lock}",
        "/proc/71/stat": "71 (python3) S 1",
        "/proc/71/fd/3": "-> /dev/null",
    }
    (cache,) = ext_cache.collect(host(files=files)).caches
    assert cache.extensions[0].holder == 70
    probe = host()
    probe.path("/proc/70/fd/3").unlink()
    (cache,) = ext_cache.collect(probe).caches
    assert (cache.extensions[0].holder, cache.extensions[0].all_seen) == (None, True)


def test_a_cache_that_may_not_be_read(host, serving, monkeypatch):
    serving(SERVER)
    probe = host(files=build(f"{TORCH}/py311_cu128/gates"))
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("py311_cu128"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (cache,) = ext_cache.collect(probe).caches
    assert "Permission denied" in cache.problem


def test_a_cache_of_many_entries_is_bounded(host, serving, monkeypatch):
    serving(SERVER)
    monkeypatch.setattr(entries, "_MOST", 3)
    files = {
        f"/home/u/.triton/cache/K{n}/k.json": '{"triton_version": "3.5.0", "target": {"arch": 70}}'
        for n in range(5)
    }
    (cache,) = ext_cache.collect(host(files=files)).caches
    assert (cache.count, cache.kernels) == (5, {"3.5.0 sm_70": 3})


def test_a_pipe_in_place_of_metadata_does_not_hold_up(host, serving, monkeypatch):
    serving(SERVER)
    probe = host(files={"/home/u/.triton/cache/K/x": ""})
    os.mkfifo(probe.path("/home/u/.triton/cache/K/k.json"))
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(probe.path("/home/u/.triton/cache/K"))  # a short path for bind
        listener.bind("s.json")
        (cache,) = ext_cache.collect(probe).caches
    assert (cache.count, cache.kernels) == (1, {})


def test_every_kind_names_its_package_and_a_place():
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.package
        assert all(place.variable or place.below.startswith("/") for place in kind.places)
        assert not (kind.lock and not kind.ninja)
