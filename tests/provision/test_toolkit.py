"""Which toolkit makes code for Volta, and which one is met first."""

import pytest
from ansible_modules import load

toolkit = load("volta_toolkit")


@pytest.fixture
def tool(tmp_path):
    """Return a function that makes a program which tells a CUDA release, and compiles or not."""

    def make(release, name="nvcc", compiles=True):
        path = tmp_path / release / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            '#!/bin/sh\nif [ "$1" = --version ]; then echo "Cuda compilation tools, release '
            f'{release}, V{release}.1"; exit; fi\n'
            + ('touch "$4"\n' if compiles else "echo 'unsupported GNU version' >&2; exit 1\n")
        )
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize(
    ("version", "good"),
    [("12.9", True), ("9.0", True), ("11.8", True), ("13.0", False), ("8.0", False), ("", False)],
)
def test_the_releases_that_make_code_for_volta(version, good):
    assert toolkit.suits(version, "9.0", "13.0") is good


def test_the_release_of_a_toolkit(tool, tmp_path):
    assert toolkit.release(tool("12.9")) == "12.9"
    assert toolkit.release(tmp_path / "none") == ""


def test_a_tool_of_cuda_13_that_comes_first_is_named(tool):
    good, bad = tool("12.9"), tool("13.0", "ptxas")
    assert toolkit.path_problems([str(good), ""], "9.0", "13.0") == []
    (problem,) = toolkit.path_problems([str(good), str(bad)], "9.0", "13.0")
    assert str(bad) in problem
    assert "Value 'sm_70' is not defined" in problem


def test_a_login_shell_is_asked():
    assert toolkit.met_first(("sh", "-c")) == toolkit.met_first(("sh", "-c"))
    assert len(toolkit.met_first(("false",))) == 2


def test_an_empty_kernel_is_compiled(tool):
    assert toolkit.compile_problem(tool("12.9")) == ""
    problem = toolkit.compile_problem(tool("12.8", compiles=False))
    assert "unsupported GNU version" in problem
    assert "CUDAHOSTCXX" in problem
