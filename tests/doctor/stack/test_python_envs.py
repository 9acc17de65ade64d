"""Python environments of servers, read from files as pip, uv, conda and Debian write them."""

import json
import os
import time

import pytest

from volta_doctor.facts import python_envs
from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.facts.python_envs.distributions import parse_metadata
from volta_doctor.facts.python_envs.torch_build import parse_torch
from volta_doctor.facts.serve import Server
from volta_doctor.probe import CannotLook

RELEASE = "/opt/volta/releases/0123456789ab"
VENV = f"{RELEASE}/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"
CURRENT = {"/opt/volta/current": "-> releases/0123456789ab"}
# torch/version.py of the wheel on PyPI
VERSION_PY = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.10.0+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = '449b1768410104d3ed79d3bcfe4ba1d65c7f22c0'
hip: Optional[str] = None
"""
# of Debian 12's libc.so.6
LIBC = b"GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\n"
WHEEL = """Wheel-Version: 1.0
Generator: setuptools (80.9.0)
Root-Is-Purelib: false
Tag: cp311-cp311-manylinux_2_28_x86_64
Build: 3

"""


def info(site, name, version, wheel="", **files):
    directory = f"{site}/{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\n" + "README\n" * 9000
    found = {f"{directory}/METADATA": metadata}
    if wheel:
        found[f"{directory}/WHEEL"] = wheel
    return found | {f"{directory}/{file}": text for file, text in files.items()}


def venv(prefix, config="home = /usr/bin\nversion = 3.11.2\n"):
    return {f"{prefix}/pyvenv.cfg": config, f"{prefix}/lib/python3.11/site-packages": None}


def server(prefix, name="vllm.service", **fields):
    return Server(name=name, engine="vllm", source="", prefix=prefix, **{"env": {}, **fields})


def test_the_release_with_torch(host, serving, elf_file, fat_binary):
    serving(server(VENV, "volta-serve.service"))
    torch = elf_file({".nv_fatbin": fat_binary((2, 70), (2, 80))})
    files = {
        **CURRENT,
        **venv(VENV),
        **info(SITE, "torch", "2.10.0", WHEEL, RECORD=""),
        **info(SITE, "click", "8.3.1", "Root-Is-Purelib: true\nTag: py3-none-any\n"),
        **info(SITE, "nvidia_cudnn_cu12", "9.10.2.21"),
        f"{SITE}/torch/version.py": VERSION_PY,
        f"{SITE}/torch/lib/libtorch_cuda.so": torch,
        f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12": "",
        "/lib/x86_64-linux-gnu/libc.so.6": elf_file({".rodata": b"\0" + LIBC}),
    }
    probe = host(files=files)
    os.utime(probe.path(f"{SITE}/torch-2.10.0.dist-info/RECORD"), (1795900000, 1795900000))
    (env,) = python_envs.collect(probe).envs
    assert env.problem == ""
    assert (env.prefix, env.kind, env.python, env.tag) == (VENV, "venv", "3.11.2", "cp311")
    assert env.used_by == ["current release", "volta-serve.service"]
    assert {d.name: d.tags for d in env.distributions} == {
        "torch": ["cp311-cp311-manylinux_2_28_x86_64"],
        "click": [],
        "nvidia_cudnn_cu12": [],
    }
    assert (env.torch, env.torch_cuda, env.torch_time) == ("2.10.0+cu128", "12.8", 1795900000)
    assert env.torch_code == DeviceCode(sass={"70": 1, "80": 1})
    assert (env.cudnn, env.glibc) == ("9.10.2.21", "2.36")
    assert [library.name for library in env.runtimes] == ["libcudart.so.12"]


def test_one_environment_by_several_names_is_read_once(host, serving):
    serving(
        server("/opt/volta/current/venv", "a.service"),
        server("/opt/b", "b.service"),
        server("/srv/b", "c.service"),
    )
    files = {**CURRENT, **venv(VENV), **venv("/opt/b"), "/srv/b": "-> ../opt/b"}
    envs = python_envs.collect(host(files=files)).envs
    assert {env.prefix: env.used_by for env in envs} == {
        VENV: ["current release", "a.service"],
        "/opt/b": ["b.service", "c.service"],
    }


@pytest.mark.parametrize(
    ("config", "python"),
    [
        ("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n", "3.11.2"),
        ("home = /usr/bin\nimplementation = CPython\nversion_info = 3.11.2.final.0\n", "3.11.2"),
        (
            "home = /root/.local/share/uv/python/x/bin\nuv = 0.9.1\nversion_info = 3.11.14\n",
            "3.11.14",
        ),
        ("home = /usr/bin\nversion = 3.11\n", "3.11"),
    ],
)
def test_venv_virtualenv_and_uv(host, serving, config, python):
    serving(server("/opt/v"))
    (env,) = python_envs.collect(host(files=venv("/opt/v", config))).envs
    assert (env.python, env.tag, env.problem) == (python, "cp311", "")


def test_conda(host, serving, elf_file, fat_binary):
    serving(server("/opt/conda/envs/v", home="/home/u"))
    prefix, site = "/opt/conda/envs/v", "/opt/conda/envs/v/lib/python3.12/site-packages"
    user = "/home/u/.local/lib/python3.12/site-packages"
    files = {
        f"{prefix}/conda-meta/python-3.12.11-h9e4cc4f_0_cpython.json": "{}",
        f"{prefix}/conda-meta/libtorch-2.10.0-cuda129_mkl_h43a4b0b_301.json": "{}",
        f"{prefix}/conda-meta/cudnn-9.10.1.4-h7646684_1.json": "{}",
        f"{prefix}/conda-meta/history": "",
        f"{prefix}/lib/libtorch_cuda.so": elf_file({".nv_fatbin": fat_binary((2, 70))}),
        f"{site}/torch/version.py": VERSION_PY,
        f"{site}/torch/lib": None,
        **info(site, "click", "8.3.1"),
        **info(user, "click", "8.1.0"),
    }
    (env,) = python_envs.collect(host(files=files)).envs
    assert (env.kind, env.python, env.tag, env.cudnn) == ("conda", "3.12.11", "cp312", "9.10.1.4")
    assert ("libtorch", "2.10.0", "cuda129_mkl_h43a4b0b_301") in [
        (package.name, package.version, package.build) for package in env.conda
    ]
    assert env.torch_code == DeviceCode(sass={"70": 1})
    # what a user has installed for himself comes first
    assert [d.version for d in env.distributions] == ["8.1.0"]


def test_debian_s_python(host, serving):
    serving(server("/usr", python="/usr/bin/python3"))
    files = {
        "/usr/bin/python3.11": "",
        "/usr/bin/python3": "-> python3.11",
        "/usr/lib/python3.12/site-packages": None,
        **info("/usr/local/lib/python3.11/dist-packages", "numpy", "2.3.0"),
        "/usr/lib/python3/dist-packages/numpy-1.24.2.egg-info/PKG-INFO": (
            "Metadata-Version: 2.1\nName: numpy\nVersion: 1.24.2\n"
        ),
        "/usr/lib/python3/dist-packages/six-1.16.0.egg-info": "Name: six\nVersion: 1.16.0\n",
    }
    (env,) = python_envs.collect(host(files=files)).envs
    assert (env.kind, env.python, env.tag) == ("system", "3.11", "cp311")
    assert {d.name: d.version for d in env.distributions} == {"numpy": "2.3.0", "six": "1.16.0"}


def test_a_venv_that_sees_the_system_s_packages(host, serving):
    serving(server("/opt/v"))
    config = "home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.11.2\n"
    files = venv("/opt/v", config) | {
        "/usr/local/lib/python3.11/dist-packages/torch/version.py": VERSION_PY
    }
    (env,) = python_envs.collect(host(files=files)).envs
    assert env.torch == "2.10.0+cu128"
    assert env.torch_code is None
    assert "no library with device code" in env.torch_problem


def test_a_server_in_a_container(host, serving):
    root = "/proc/4711/root"
    serving(server(f"{root}/usr/local", python=f"{root}/usr/local/bin/python3.12"))
    files = info(f"{root}/usr/local/lib/python3.12/site-packages", "vllm", "0.19.0")
    (env,) = python_envs.collect(host(files=files)).envs
    assert (env.tag, env.problem) == ("cp312", "")
    assert [d.name for d in env.distributions] == ["vllm"]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"/opt/v/pyvenv.cfg": "home = /usr/bin\n"}, "pyvenv.cfg names no Python version"),
        ({"/opt/v/pyvenv.cfg": "version = 3.11.2\n"}, "holds no packages of Python 3.11.2"),
        ({"/opt/v/conda-meta/history": ""}, "conda-meta names no Python"),
        (
            {"/opt/v/lib/python3.9": None, "/opt/v/lib/python3.8": None},
            "holds 2 python directories",
        ),
    ],
)
def test_an_environment_that_cannot_be_read_is_named(host, serving, files, problem):
    serving(server("/opt/v"))
    (env,) = python_envs.collect(host(files=files)).envs
    assert problem in env.problem
    assert env.used_by == ["vllm.service"]


def test_a_host_without_release_and_servers_has_none(host, serving):
    facts = python_envs.collect(host())
    assert (facts.envs, facts.problem) == ([], "")
    assert [search.name for search in facts.searches] == ["this shell"]


def test_where_servers_may_have_been_missed_there_is_no_answer(host, serving):
    serving(problem="12 processes are hidden")
    with pytest.raises(CannotLook, match=r"12 processes are hidden; no release is installed"):
        python_envs.collect(host())


def test_a_release_that_is_gone_is_not_forgotten(host, serving):
    serving(server("/opt/v"))
    files = {"/opt/volta/current": "-> releases/gone", **venv("/opt/v")}
    broken, other = python_envs.collect(host(files=files)).envs
    assert (broken.prefix, broken.used_by) == ("/opt/volta/current/venv", ["current release"])
    assert "releases/gone, which does not exist" in broken.problem
    assert (other.prefix, other.problem) == ("/opt/v", "")


def test_a_host_that_serves_without_python(host, serving):
    serving(Server(name="llama.service", engine="llamacpp", source="", env={}))
    facts = python_envs.collect(host())
    assert facts.envs == []
    assert [search.name for search in facts.searches] == ["llama.service"]


def test_a_torch_that_cannot_be_read(host, serving, elf_file):
    serving(server("/opt/v"))
    site = "/opt/v/lib/python3.11/site-packages"
    files = venv("/opt/v") | {
        f"{site}/torch/version.py": VERSION_PY,
        f"{site}/torch/lib/libtorch_cuda.so": elf_file({".nv_fatbin": bytes(64)})[:-9],
        f"{site}/torch/lib/libcudnn.so.9": "",
    }
    (env,) = python_envs.collect(host(files=files)).envs
    assert env.torch_code is None
    assert "libtorch_cuda.so is cut short" in env.torch_problem
    assert (env.cudnn, env.cudnn_source) == ("9", f"{site}/torch/lib/libcudnn.so.9")


def test_torch_s_version_file():
    assert parse_torch(VERSION_PY) == ("2.10.0+cu128", "12.8")
    cpu = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"
    assert parse_torch(cpu) == ("2.13.0+cpu", None)


def test_metadata_of_an_editable_package():
    url = json.dumps({"url": "file:///src/vllm", "dir_info": {"editable": True}})
    assert parse_metadata("Name: vllm\r\nVersion: 1\r\n\r\nVersion: 2\r\n", url) == parse_metadata(
        "Name: vllm\nVersion: 1\n\n", url
    )
    assert parse_metadata("Name: vllm\nVersion: 1\n", url).source == "/src/vllm"


def test_an_environment_of_two_hundred_packages_is_read_in_time(host, serving):
    serving(server("/opt/v"))
    site = "/opt/v/lib/python3.11/site-packages"
    files = venv("/opt/v")
    for number in range(200):
        files |= info(site, f"p{number}", "1", WHEEL)
    probe = host(files=files)
    started = time.monotonic()
    (env,) = python_envs.collect(probe).envs
    assert time.monotonic() - started < 0.7
    assert len(env.distributions) == 200
