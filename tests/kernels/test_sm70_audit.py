"""The sm_70 machine code of the library as users build it."""

import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def library(configure, tmp_path_factory):
    """libvolta_kernels.so as users build it, and the cuobjdump beside its nvcc."""
    build = tmp_path_factory.mktemp("sm70")
    done = configure(build, "-DVOLTA_CUDA=ON")
    if done.returncode and "needs an nvcc that makes sm_70" in " ".join(done.stderr.split()):
        pytest.skip("no nvcc here makes sm_70 code: " + done.stderr)
    assert done.returncode == 0, done.stderr
    made = subprocess.run(["cmake", "--build", build, "-j2"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout
    nvcc = Path(re.search(r"CUDA kernels: yes, by (\S+)", done.stdout)[1])
    return build / "libvolta_kernels.so", nvcc.with_name("cuobjdump")


def dump(library, *options):
    path, cuobjdump = library
    return subprocess.run(
        [cuobjdump, *options, path], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_the_fat_binary_holds_sm70_code_and_ptx(library, repo):
    files = len(list((repo / "csrc/cuda").glob("*.cu")))
    elf, ptx = dump(library, "-lelf").splitlines(), dump(library, "-lptx").splitlines()
    assert len([line for line in elf if line.endswith("sm_70.cubin")]) == len(elf) == files
    assert len([line for line in ptx if line.endswith("sm_70.ptx")]) == len(ptx) == files
    assert set(re.findall(r"^\.target (\S+)", dump(library, "-ptx"), re.M)) == {"sm_70"}


@pytest.mark.slow
def test_nothing_spills_and_16_warps_fit_an_sm(library):
    usage = re.findall(
        r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)",
        dump(library, "-res-usage"),
    )
    assert len(usage) == 17  # 8 values of M by 2 of rows, and dequantise
    for name, registers, stack, shared, local in usage:
        assert (int(stack), int(local)) == (0, 0), name
        assert int(registers) <= 65536 // (16 * 32), name
        assert int(shared) <= 96 * 1024 // 4, name


@pytest.mark.slow
def test_the_gemv_loads_128_bits_and_dequantise_stores_them(library):
    functions = re.split(r"^\s+Function : ", dump(library, "-sass"), flags=re.M)[1:]
    gemv = [f for f in functions if "nvfp4_gemv" in f.splitlines()[0]]
    dequantize = [f for f in functions if "nvfp4_dequantize" in f.splitlines()[0]]
    assert (len(gemv), len(dequantize)) == (16, 1)
    for code in gemv:
        loads = re.findall(r"\bLDG\.E\.(\w+)", code)
        # 128 bits: codes, and x for four times eight columns. Narrower are only the pairs of scale
        # bytes (U16) and the rows' FP32 scales (32 bits, which SASS leaves unsaid).
        assert loads.count("128") >= 5, code.splitlines()[0]
        assert set(loads) == {"128", "U16", "CONSTANT"}, code.splitlines()[0]
    assert re.search(r"\bSTG\.E\.128", dequantize[0])
    assert not any(re.search(r"\b(LDL|STL)\b", code) for code in functions)
