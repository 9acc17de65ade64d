"""For each edge of the join a host that breaks it: exactly one root cause, the right one."""

import json

import pytest

from volta_doctor.arch import edges

SITE = "srv/venv/lib/python3.11/site-packages"
VERSION = "proc/driver/nvidia/version"
UNIT = "etc/systemd/system/vllm.service"
SERVE = "[Service]\nExecStart=/srv/venv/bin/python -m vllm.entrypoints.openai.api_server --model m"

RELEASE = {
    "schema": 1,
    "digest": f"sha256:{'ab' * 32}",
    "profile": "v100",
    "manager": "systemd",
    "unit": "volta-serve.service",
    "url": "http://127.0.0.1:8000",
    "model": "m",
    "model_dir": "/opt/volta/models/m",
    "python": "3.11",
    "created": "2026-11-30T09:00:00+00:00",
}
LOCK = f"""schema: 1
profile: v100
engine: embedded
source: "sha256:{"ab" * 32}"
version: "0.1.0"
packages: []
"""


@pytest.fixture
def files(shared_object, package, elf_file):
    """The files that make each host what it is."""
    torch = f"{SITE}/torch"
    none_for_volta = shared_object([75, 80, 90])
    return {
        "sound": {},
        "open kernel module": {
            VERSION: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n"
        },
        "no module loaded": {
            VERSION: None,
            "sys/module/nvidia/initstate": None,
            "sys/module/nvidia_uvm/initstate": None,
        },
        "a branch beyond Volta": {},
        "module and libraries differ": {},
        "driver too old for CUDA 12": {},
        "a libcuda of another driver": {
            UNIT: f"{SERVE}\nEnvironment=LD_LIBRARY_PATH=/opt/old\n",
            "opt/old/libcuda.so.1": "-> libcuda.so.550.54.14",
            "opt/old/libcuda.so.550.54.14": elf_file(),
        },
        "torch for CUDA 13": {
            f"{torch}/version.py": "__version__ = '2.11.0+cu130'\ncuda = '13.0'\n",
            f"{torch}/lib/libtorch_cuda.so": none_for_volta,
            **package("nvidia-nccl-cu13", "2.28.9"),
            **package("nvidia-cudnn-cu13", "9.19.0.56"),
        },
        "an extension for CUDA 13": {
            f"{SITE}/flux/_C.abi3.so": shared_object([75], needs=["libcudart.so.13"]),
        },
        "torch without sm_70": {
            f"{torch}/version.py": "__version__ = '2.11.0+cu128'\ncuda = '12.8'\n",
            f"{torch}/lib/libtorch_cuda.so": none_for_volta,
            **package("torchvision", "0.26.0", "torch==2.11.0"),
            **package("nvidia-cudnn-cu12", "9.19.0.56"),
            f"{SITE}/nvidia_cudnn_cu12-9.10.2.21.dist-info/METADATA": None,
        },
        "an extension for another Python": {
            f"{SITE}/gone/g.cpython-312-x86_64-linux-gnu.so": shared_object([70])
        },
        "an extension without sm_70": {
            f"{SITE}/exllama/ext.cpython-311-x86_64-linux-gnu.so": shared_object(
                [80, 90], needs=["libcudart.so.12", "libtorch_cuda.so"]
            )
        },
        "an NCCL that dropped Volta": {
            f"{SITE}/nvidia/nccl/lib/libnccl.so.2": shared_object([75, 80]),
        },
        "PTX that is too new": {
            f"{SITE}/fresh/f.abi3.so": shared_object([80], ptx=[70], isa="8.7")
        },
        "a release without kernels": {
            "opt/volta/current": "-> releases/0123456789ab",
            "opt/volta/releases/0123456789ab/venv": "-> ../../../../srv/venv",
            "opt/volta/releases/0123456789ab/release.json": json.dumps(RELEASE),
            "opt/volta/releases/0123456789ab/stack.lock.yaml": LOCK,
        },
        "an older NCCL than torch's": {
            **package("nvidia-nccl-cu12", "2.21.5"),
            f"{SITE}/nvidia_nccl_cu12-2.27.5.dist-info/METADATA": None,
        },
        "cuDNN without sm_70": {
            **package("nvidia-cudnn-cu12", "9.19.0.56"),
            f"{SITE}/nvidia_cudnn_cu12-9.10.2.21.dist-info/METADATA": None,
        },
        "an attention library for newer cards": {UNIT: f"{SERVE} --attention-backend FLASHINFER\n"},
    }


HOSTS = [
    ("sound", {}, None, "runs", "", ""),
    ("open kernel module", {}, "driver-open-kmod", "cannot run", "driver x card", "without -open"),
    (
        "no module loaded",
        {"snapshot": "driver-loaded"},
        "driver-loaded",
        "cannot run",
        "driver x card",
        "load its module",
    ),
    (
        "a release without kernels",
        {},
        "kernel-audit",
        "cannot run",
        "extension x card",
        "Rebuild the release's kernels",
    ),
    (
        "a branch beyond Volta",
        {"driver": "590.48.01"},
        "driver-branch",
        "cannot run",
        "driver x card",
        "branch 580",
    ),
    (
        "module and libraries differ",
        {"snapshot": "driver-lib-match"},
        "driver-lib-match",
        "cannot run",
        "driver module x driver libraries",
        "Reboot",
    ),
    (
        "driver too old for CUDA 12",
        {"driver": "470.82.01"},
        "driver-cuda",
        "cannot run",
        "driver x CUDA runtime",
        "branch 580",
    ),
    (
        "a libcuda of another driver",
        {},
        "libcuda-dup",
        "cannot run",
        "driver x CUDA runtime",
        "LD_LIBRARY_PATH",
    ),
    (
        "torch for CUDA 13",
        {},
        "cu13-lib",
        "cannot run",
        "CUDA runtime x card",
        "Install torch 2.10.0 from PyPI",
    ),
    (
        "an extension for CUDA 13",
        {},
        "cu13-lib",
        "cannot run",
        "CUDA runtime x card",
        "the CUDA 12 build of _C.abi3.so",
    ),
    (
        "torch without sm_70",
        {},
        "torch-arch",
        "cannot run",
        "torch x card",
        "Install torch 2.10.0 from PyPI",
    ),
    (
        "an extension for another Python",
        {},
        "python-version",
        "cannot run",
        "extension x Python",
        "g.cpython-312",
    ),
    (
        "an extension without sm_70",
        {},
        "ext-arch",
        "cannot run",
        "extension x card",
        "Rebuild it for sm_70",
    ),
    (
        "an NCCL that dropped Volta",
        {},
        "ext-arch",
        "cannot run",
        "CUDA library x card",
        "Replace libnccl.so.2 by an older release, for CUDA 12.9",
    ),
    (
        "PTX that is too new",
        {"driver": "535.183.01"},
        "ext-arch",
        "cannot run",
        "driver x PTX",
        "branch 580, which compiles this PTX",
    ),
    (
        "an older NCCL than torch's",
        {},
        "torch-libs",
        "cannot run",
        "torch x NCCL, cuBLAS, cuDNN",
        "that torch pins",
    ),
    ("cuDNN without sm_70", {}, "cudnn", "runs", "cuDNN x card", "before 9.11"),
    (
        "an attention library for newer cards",
        {},
        "xformers-flash-attn-volta",
        "cannot run",
        "serving flags x card",
        "attention backend",
    ),
]


def test_every_edge_has_a_host():
    assert {row.edge for row in edges.edges()} == {row[4] for row in HOSTS} - {""}
    assert {row.check for row in edges.edges()} == {row[2] for row in HOSTS} - {None}


@pytest.mark.parametrize(
    ("name", "how", "check", "verdict", "edge", "change"), HOSTS, ids=[row[0] for row in HOSTS]
)
def test_one_root_cause(made_host, files, name, how, check, verdict, edge, change):
    host = made_host(files=files[name], **how)
    (target,) = host.report("/srv/venv")["targets"]
    assert target["verdict"] == verdict, target
    roots = [f for f in target["findings"] if not f["folded_under"]]
    if check is None:
        assert (roots, target["first_break"]) == ([], None)
        return
    mended = {"driver-branch"} if edge == "driver x PTX" else set()
    assert {f["id"] for f in roots} - mended == {check}, roots
    first = target["first_break"]
    assert (first["check"], first["edge"]) == (check, edge)
    assert change in first["change"]
    assert all("exllama is compiled against torch 2.11.0" in text for text in first["then"])
    assert bool(first["then"]) == ("torch==2.10.0" in "".join(first["commands"]))


@pytest.mark.parametrize("build", ["cpu", "cu130"])
def test_a_torch_of_the_same_number_is_no_other_to_pip(made_host, files, build):
    cuda = "cuda = '13.0'\n" if build == "cu130" else ""
    torch = {
        **files["torch for CUDA 13"],
        f"{SITE}/torch/version.py": f"__version__ = '2.10.0+{build}'\n{cuda}",
        f"{SITE}/nvidia_nccl_cu13-2.28.9.dist-info/METADATA": None,
        f"{SITE}/nvidia_cudnn_cu13-9.19.0.56.dist-info/METADATA": None,
    }
    (target,) = made_host(files=torch).report("/srv/venv")["targets"]
    assert target["first_break"]["commands"][:2] == [
        "/srv/venv/bin/python -m pip uninstall -y torch",
        "/srv/venv/bin/python -m pip install torch==2.10.0",
    ]


def test_this_hosts_linker_says_nothing_of_another_driver(made_host, files):
    host = made_host(files=files["a libcuda of another driver"])
    (target,) = host.report("--driver", "580.95.05", "/srv/venv")["targets"]
    assert (target["verdict"], target["first_break"]) == ("runs", None)


def test_nvidias_libraries_beside_extensions(made_host, files):
    both = files["an NCCL that dropped Volta"] | files["an extension without sm_70"]
    (target,) = made_host(files=both).report("/srv/venv")["targets"]
    first = target["first_break"]
    assert first["edge"] == "extension x card"
    assert first["then"] == ["NVIDIA alone builds libnccl.so.2: install an older one, for CUDA 12"]
    assert len(first["commands"]) == 1


def test_what_has_to_change_with_torch(made_host, files, package):
    others = {
        **package("torchaudio", "2.11.0"),
        **package("torchvision", "0.26.0", "torch==2.11.0"),
        **package("cupy-cuda13x", "14.2.0"),
    }
    host = made_host(files=files["torch for CUDA 13"] | others)
    (target,) = host.report("/srv/venv")["targets"]
    pip = "/srv/venv/bin/python -m pip"
    assert target["first_break"]["commands"] == [
        f"{pip} uninstall -y nvidia-cudnn-cu13 nvidia-nccl-cu13",
        f"{pip} install torch==2.10.0 torchvision torchaudio==2.10.0",
        f"TORCH_CUDA_ARCH_LIST=7.0 {pip} install --force-reinstall --no-deps --no-cache-dir"
        " --no-build-isolation --no-binary exllama exllama==0.3.2",
    ]
    assert target["first_break"]["then"] == [
        "exllama is compiled against torch 2.11.0+cu130: build it anew",
        "cupy-cuda13x is built for CUDA 13: install its build for CUDA 12",
    ]
