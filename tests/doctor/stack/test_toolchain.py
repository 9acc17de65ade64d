"""Compilers of the host, what each build would take, and Triton's ptxas."""

import os
import subprocess

import pytest

from volta_doctor.facts import toolchain
from volta_doctor.facts.serve import Server
from volta_doctor.facts.toolchain import host_compiler
from volta_doctor.facts.toolchain.cuda_tools import Tools
from volta_doctor.probe import Probe

# What nvcc, ptxas and cicc print for --version
TEXT = b"Cuda compilation tools, release %s, V%s.89\0"
SITE = "/opt/v/lib/python3.11/site-packages"
ENV = {"/opt/v/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n", f"{SITE}/x": None}


@pytest.fixture
def tool(elf_file):
    def make(release: str) -> bytes:
        text = TEXT.replace(b"%s", release.encode())
        return elf_file({".rodata": b"\0nvcc: NVIDIA (R) Cuda compiler driver\n" + text})

    return make


def server(**fields):
    given = {"name": "vllm.service", "unit": "vllm.service", "prefix": "/opt/v", "env": {}}
    return Server(engine="vllm", source="", **(given | fields))


def test_debian_s_toolkit_beside_another(host, serving, tool):
    serving(server(env={"PATH": "/usr/bin"}))
    debian = "/usr/lib/nvidia-cuda-toolkit/bin"
    files = ENV | {
        "/usr/local/bin/nvcc": '#!/bin/sh\nexec /usr/local/cuda-13.0/bin/nvcc "$@"\n',
        "/usr/local/cuda": "-> cuda-13.0",
        "/usr/local/cuda-13.0/bin/nvcc": tool("13.0"),
        "/usr/local/cuda-13.0/bin/ptxas": tool("13.0"),
        "/usr/local/cuda-13.0/nvvm/bin/cicc": tool("13.0"),
        "/usr/bin/nvcc": f'#!/bin/sh\n\nexec {debian}/nvcc "$@"\n',
        "/usr/bin/ptxas": tool("11.8"),
        f"{debian}/nvcc": tool("11.8"),
        f"{debian}/cicc": tool("11.8"),
    }
    facts = toolchain.collect(host(files=files, env={"PATH": "/usr/local/bin:/usr/bin"}))
    assert [(t.path, t.release) for t in facts.compilers] == [
        ("/usr/local/cuda-13.0/bin/nvcc", "13.0"),
        (f"{debian}/nvcc", "11.8"),
    ]
    shell, vllm = facts.builds
    assert (shell.name, shell.nvcc.path, shell.nvcc_by) == (
        "this shell",
        "/usr/local/bin/nvcc",
        "PATH",
    )
    assert shell.nvcc.real == "/usr/local/cuda-13.0/bin/nvcc"
    assert [t.release for t in shell.beside] == ["13.0", "13.0"]
    assert (vllm.nvcc.release, [t.path for t in vllm.beside]) == (
        "11.8",
        ["/usr/bin/ptxas", f"{debian}/cicc"],
    )


def test_debian_s_nvcc_takes_the_first_ptxas_on_path(host, serving, tool):
    debian = "/usr/lib/nvidia-cuda-toolkit/bin"
    serving(server(env={"PATH": "/usr/local/bin:/usr/bin", "CUDA_HOME": "/usr"}))
    files = ENV | {
        "/usr/bin/nvcc": f'#!/bin/sh\nexec {debian}/nvcc "$@"\n',
        f"{debian}/nvcc": tool("11.8"),
        "/usr/local/bin/ptxas": tool("13.0"),
        "/usr/bin/ptxas": tool("11.8"),
    }
    vllm = toolchain.collect(host(files=files)).builds[1]
    assert (vllm.nvcc_by, vllm.nvcc.release) == ("CUDA_HOME", "11.8")
    assert [(t.path, t.release) for t in vllm.beside] == [("/usr/local/bin/ptxas", "13.0")]


@pytest.mark.parametrize(
    ("env", "path", "by"),
    [
        ({"CUDA_HOME": "/a", "PATH": "/b/bin"}, "/a/bin/nvcc", "CUDA_HOME"),
        ({"CUDA_PATH": "/a", "PATH": "/b/bin"}, "/a/bin/nvcc", "CUDA_PATH"),
        ({"PYTORCH_NVCC": "/b/bin/nvcc", "CUDA_HOME": "/a"}, "/b/bin/nvcc", "PYTORCH_NVCC"),
        ({"PATH": "relative:/none:/b/bin"}, "/b/bin/nvcc", "PATH"),
        ({"PATH": "/none"}, "/usr/local/cuda/bin/nvcc", "/usr/local/cuda"),
        ({}, "/usr/local/bin/nvcc", "PATH"),
    ],
)
def test_the_nvcc_that_torch_takes(host, env, path, by):
    names = ("/a/bin", "/b/bin", "/usr/local/cuda/bin", "/usr/local/bin")
    probe = host(files={f"{name}/nvcc": "" for name in names})
    assert toolchain.find_nvcc(probe, env) == (path, by)


def test_variables_and_hidden_environments(host, serving):
    serving(
        server(env={"TORCH_CUDA_ARCH_LIST": "7.0", "MAX_JOBS": "4", "HF_TOKEN": "secret"}),
        server(name="b.service", env=None, env_problem="/proc/7/environ: Permission denied"),
        server(name="llama.service", prefix=None),
    )
    facts = toolchain.collect(host(files=ENV, env={"CUDAARCHS": "70"}))
    assert [(build.name, build.variables) for build in facts.builds] == [
        ("this shell", {"CUDAARCHS": "70"}),
        ("vllm.service", {"TORCH_CUDA_ARCH_LIST": "7.0", "MAX_JOBS": "4"}),
        ("b.service", {}),
    ]
    assert facts.builds[2].problem == "/proc/7/environ: Permission denied"
    assert facts.compilers == []
    assert facts.triton == []


def test_triton_s_ptxas(host, serving, tool):
    serving(
        server(),
        server(name="b.service", env={"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}),
        server(name="c.service", prefix="/opt/none"),
        server(name="d.service", env={"TRITON_PTXAS_PATH": "/gone/ptxas"}),
    )
    files = ENV | {
        f"{SITE}/triton/backends/nvidia/bin/ptxas": tool("12.8"),
        "/usr/local/cuda/bin/ptxas": tool("13.0"),
    }
    found = toolchain.collect(host(files=files)).triton
    assert [(item.name, item.tool.release, item.by) for item in found] == [
        ("vllm.service", "12.8", "Triton's own"),
        ("b.service", "13.0", "TRITON_PTXAS_PATH"),
        ("d.service", "12.8", "Triton's own (there is no /gone/ptxas)"),
    ]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "/x/nvcc: No such file or directory"),
        ({"/x/nvcc": None}, "/x/nvcc: not a file"),
        ({"/x/nvcc": "#!/bin/sh\n$CUDA_HOME/bin/nvcc\n"}, "does not tell which program it runs"),
        ({"/x/nvcc": '#!/bin/sh\nexec /x/nvcc "$@"\n'}, "too many scripts"),
        ({"/x/nvcc": "text"}, "/x/nvcc is no 64-bit ELF file"),
    ],
)
def test_a_tool_that_does_not_tell(host, files, problem):
    tool = Tools(host(files=files)).read("/x/nvcc")
    assert tool.release is None
    assert problem in tool.problem


def test_the_release_may_lie_across_two_reads(host, elf_file, monkeypatch):
    from volta_doctor.facts.toolchain import cuda_tools

    monkeypatch.setattr(cuda_tools, "_CHUNK_BYTES", 100)
    text = TEXT.replace(b"%s", b"12.8")
    for padding in range(60, 130):
        program = elf_file({".rodata": bytes(padding) + text})
        probe = host(files={f"/x{padding}/nvcc": program})
        assert Tools(probe).read(f"/x{padding}/nvcc").release == "12.8"
    probe = host(files={"/y/nvcc": elf_file({".rodata": bytes(300)})})
    assert "does not name its CUDA release" in Tools(probe).read("/y/nvcc").problem


def test_a_toolkit_that_is_taken_apart_runs_what_path_leads_to(host, serving, tool):
    debian = "/usr/lib/nvidia-cuda-toolkit/bin"
    serving(server(env={"PATH": "/opt/other/bin:/usr/local/bin:/usr/bin"}))
    files = ENV | {
        "/usr/bin/nvcc": f'#!/bin/sh\nexec {debian}/nvcc "$@"\n',
        f"{debian}/nvcc": tool("11.8"),
        f"{debian}/cicc": tool("11.8"),
        "/opt/other/bin/ptxas": tool("12.4"),
        "/usr/local/bin/ptxas": tool("13.0"),
        "/usr/local/bin/nvlink": tool("13.0"),
        "/usr/bin/ptxas": tool("11.8"),
        "/usr/bin/nvlink": tool("11.8"),
    }
    facts = toolchain.collect(host(files=files))
    shell, vllm = facts.builds
    assert [tool.release for tool in shell.beside] == ["11.8", "11.8", "11.8"]
    assert shell.fitting == []
    assert [(tool.path, tool.release) for tool in vllm.beside] == [
        ("/opt/other/bin/ptxas", "12.4"),
        (f"{debian}/cicc", "11.8"),
        ("/usr/local/bin/nvlink", "13.0"),
    ]
    assert vllm.fitting == ["/usr/bin"]
    assert [(c.release, c.apart) for c in facts.compilers] == [("11.8", True)]


def test_every_toolkit_is_found(host, serving, tool):
    places = ("/usr/local/cuda-12.6", "/opt/cuda", "/opt/cuda-11.4", "/opt/nvidia")
    files = {f"{place}/bin/nvcc": tool("12.6") for place in places}
    files["/usr/local/cuda"] = "-> cuda-12.6"
    for part in ("bin/ptxas", "bin/nvlink", "nvvm/bin/cicc"):
        files[f"/usr/local/cuda-12.6/{part}"] = tool("12.6")
    facts = toolchain.collect(host(files=files, env={"PATH": "/opt/nvidia/bin/:/usr/bin"}))
    assert [(compiler.path, compiler.apart) for compiler in facts.compilers] == [
        ("/usr/local/cuda-12.6/bin/nvcc", False),
        ("/opt/cuda-11.4/bin/nvcc", True),
        ("/opt/cuda/bin/nvcc", True),
        ("/opt/nvidia/bin/nvcc", True),
    ]


def test_a_cuda_home_that_leads_nowhere(host, serving):
    (shell,) = toolchain.collect(host(env={"CUDA_HOME": "/gone"})).builds
    assert (shell.nvcc.path, shell.nvcc.missing) == ("/gone/bin/nvcc", True)


GCC = {
    "/usr/bin/gcc": "-> gcc-12",
    "/usr/bin/gcc-12": "-> x86_64-linux-gnu-gcc-12",
    "/usr/bin/x86_64-linux-gnu-gcc-12": "",
    "/usr/bin/gcc-11": "",
    "/usr/bin/g++-11": "",
    "/usr/bin/ccache": "",
    "/opt/rh/bin/gcc": "",
    "/opt/rh/lib/gcc/x86_64-redhat-linux/13/cc1plus": "",
    "/opt/rh/lib/gcc/x86_64-redhat-linux/14/README": "",
    "/opt/cuda/bin/nvcc": "",
}


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, ("/usr/bin/gcc", "PATH", 12)),
        ({"CC": "gcc-11"}, ("/usr/bin/gcc-11", "CC", 11)),
        ({"CC": "/usr/bin/gcc-11 -m64"}, ("/usr/bin/gcc-11", "CC", 11)),
        ({"CC": "ccache gcc"}, ("/usr/bin/ccache", "CC", None)),
        ({"CC": "icc"}, ("icc", "CC", None)),
        ({"NVCC_CCBIN": "/opt/rh/bin"}, ("/opt/rh/bin/gcc", "NVCC_CCBIN", 13)),
        (
            {"NVCC_APPEND_FLAGS": "-O3 -ccbin=gcc-11", "NVCC_CCBIN": "/opt/rh/bin"},
            ("/usr/bin/gcc-11", "NVCC_APPEND_FLAGS", 11),
        ),
        (
            {"NVCC_PREPEND_FLAGS": "-ccbin gcc-11"},
            ("/usr/bin/gcc-11", "NVCC_PREPEND_FLAGS", 11),
        ),
        ({"NVCC_PREPEND_FLAGS": "-ccbin 'gcc"}, ("/usr/bin/gcc", "PATH", 12)),
    ],
)
def test_the_host_compiler(host, env, found):
    gcc = host_compiler.find(host(files=GCC), env, "/opt/cuda/bin/nvcc", ["/usr/bin"], "")
    assert (gcc.path, gcc.by, gcc.version) == found


def test_a_script_beside_nvcc_chooses_by_itself(host):
    probe = host(files=GCC | {"/opt/cuda/bin/gcc": "#!/bin/sh\nexec gcc-11\n"})
    gcc = host_compiler.find(probe, {}, "/opt/cuda/bin/nvcc", ["/usr/bin"], "")
    assert (gcc.path, gcc.version) == ("/opt/cuda/bin/gcc", None)
    assert [g.path for g in host_compiler.others(probe)] == ["/usr/bin/gcc-11"]
    assert host_compiler.find(host(), {}, "/x/nvcc", ["/nowhere"], "") is None


@pytest.mark.skipif(
    not all(map(os.path.exists, ("/usr/bin/nvcc", "/usr/bin/ptxas", "/usr/local/cuda-13.0"))),
    reason="needs Debian's CUDA 11.8 and CUDA 13.0",
)
@pytest.mark.parametrize("before", [[], ["/usr/local/cuda-13.0/bin"]])
def test_what_is_said_of_a_mixed_path_is_what_nvcc_does(serving, tmp_path, before):
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(float* x) { x[threadIdx.x] += 1; }\n")
    env = {"PATH": ":".join([*before, "/usr/bin", "/bin"]), "PYTORCH_NVCC": "/usr/bin/nvcc"}
    (shell,) = toolchain.collect(Probe(env=env)).builds
    releases = {tool.release for tool in shell.beside}
    argv = ["/usr/bin/nvcc", "-arch=sm_70", "-cubin", "-o", tmp_path / "k.cubin", source]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert shell.nvcc.release == "11.8"
    if before:
        assert "Value 'sm_70' is not defined" in done.stderr
        assert releases == {"13.0", "11.8"}
        assert shell.fitting == ["/usr/bin"]
    else:
        assert (done.returncode, releases, shell.fitting) == (0, {"11.8"}, [])
