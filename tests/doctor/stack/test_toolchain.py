"""Compilers of the host, what each build would take, and Triton's ptxas."""

import pytest

from volta_doctor.facts import toolchain
from volta_doctor.facts.serve import Server
from volta_doctor.facts.toolchain.cuda_tools import Tools

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
    )
    files = ENV | {
        f"{SITE}/triton/backends/nvidia/bin/ptxas": tool("12.8"),
        "/usr/local/cuda/bin/ptxas": tool("13.0"),
    }
    found = toolchain.collect(host(files=files)).triton
    assert [(item.name, item.tool.release, item.by) for item in found] == [
        ("vllm.service", "12.8", "Triton's own"),
        ("b.service", "13.0", "TRITON_PTXAS_PATH"),
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
