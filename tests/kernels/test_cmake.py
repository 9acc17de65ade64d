"""Which nvcc the build takes, and what it says of the others."""

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
        ("8.0", "", "release 8.0 is too old: sm_70 needs 9.0 or later"),
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
