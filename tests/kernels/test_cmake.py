"""Which nvcc the build takes for which GPUs, what it says of the others, and how it calls it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def fake_nvcc(directory: Path, release: str, compile_error: str = "") -> Path:
    directory.mkdir()
    nvcc = directory / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "Cuda compilation tools, release {release}" && exit 0\n'
        f'echo "{compile_error}" >&2; exit 1\n'
    )
    nvcc.chmod(0o755)
    return nvcc


@pytest.mark.parametrize(
    ("release", "compile_error", "reason"),
    [
        ("13.0", "", "release 13.0 no longer makes sm_70: the last is 12.9"),
        ("11.7", "", "release 11.7 is too old: the kernels need 11.8 or later"),
        (
            "12.9",
            "ptxas fatal   : Value 'sm_70' is not defined for option 'gpu-name'",
            "release 12.9 ran the ptxas of another toolkit",
        ),
        (
            "11.8",
            "error: #error -- unsupported GNU version!",
            "release 11.8 does not take this g++",
        ),
        (
            "11.8",
            "nvcc fatal   : Unsupported gpu architecture 'compute_100'",
            "release 11.8 does not know sm_100",
        ),
    ],
)
def test_an_unfit_nvcc_is_named(configure, tmp_path, release, compile_error, reason):
    nvcc = fake_nvcc(tmp_path / "bin", release, compile_error)
    option = f"-DCMAKE_CUDA_COMPILER={nvcc}"

    wanted = configure(tmp_path / "on", "-DVOLTA_CUDA=ON", option)
    text = " ".join(wanted.stderr.split())
    assert wanted.returncode == 1
    assert f"{nvcc}: {reason}" in text
    assert "Remedy:" in text

    optional = configure(tmp_path / "auto", option)
    assert optional.returncode == 0, optional.stderr
    assert "CUDA kernels: no" in optional.stdout
    assert f"{nvcc}: {reason}" in optional.stdout


@pytest.mark.parametrize("archs", ["", "7.0", "60;70", "70;sm_90"])
def test_what_names_no_gpu_is_refused(configure, tmp_path, archs):
    done = configure(tmp_path, f"-DVOLTA_CUDA_ARCHITECTURES={archs}")
    assert done.returncode == 1
    text = " ".join(done.stderr.split())
    assert f'VOLTA_CUDA_ARCHITECTURES is "{archs}", needs numbers of GPUs from 70 on' in text


@pytest.fixture
def configure_cuda(configure, tmp_path):
    """configure_cuda(*options) -> CMake's output and the commands that compile CUDA files."""

    def run(*options):
        done = configure(tmp_path, "-DVOLTA_CUDA=ON", *options)
        if "VOLTA_CUDA=ON needs an nvcc" in done.stderr:
            pytest.skip("no nvcc here that fits: " + done.stderr)
        assert done.returncode == 0, done.stderr
        ninja = ["ninja", "-C", tmp_path, "-t", "commands"]
        commands = subprocess.run(ninja, capture_output=True, text=True, check=True).stdout
        commands = [line for line in commands.splitlines() if ".cu.o" in line and " -c " in line]
        assert commands
        return done.stdout, commands

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("archs", "made"),
    [
        ("70", "sm_70 compute_70"),
        ("90;70;90", "sm_70 sm_90 compute_70"),
        ("80", "sm_80 compute_80"),
    ],
)
def test_machine_code_for_all_and_ptx_of_the_lowest(configure_cuda, archs, made):
    output, commands = configure_cuda(f"-DVOLTA_CUDA_ARCHITECTURES={archs}")
    assert f"for {made}\n" in output
    assert sum(f'VOLTA_CUDA_ARCHS="\\"{made}\\""' in command for command in commands) == 1
    for command in commands:
        codes = re.findall(r",code=\[?([^\]\s]+)", command)
        assert sorted(c for code in codes for c in code.split(",")) == sorted(made.split())


@pytest.mark.slow
def test_a_launcher_of_the_user_is_kept(configure_cuda):
    if not shutil.which("ccache"):
        pytest.skip("ccache is not installed")
    _, commands = configure_cuda("-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache")
    for command in commands:
        assert re.search(r"cmake -E env PATH=\S+ ccache \S*nvcc ", command), command
