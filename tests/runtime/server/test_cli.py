import os
import subprocess
import sys

import pytest


def test_help_is_quick_and_torch_is_not_imported(volta_serve):
    assert "serve" in volta_serve("--help").stdout
    code = (
        "import sys; from volta_runtime.cli import cli\n"
        "cli.main(['serve', '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'fastapi', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["serve"], 64, "Missing option '--model'"),
        (["serve", "--model", "x", "--port", "99999"], 64, "--port"),
        (["serve", "--model", "x", "--dtype", "bfloat16"], 64, "V100 (sm_70) has no BF16"),
        (["serve", "--model", "x", "--dtype", "int3"], 64, "supported: auto, half, float16"),
        (["serve", "--model", "x", "--quantization", "awq"], 64, "supported: compressed-tensors"),
        (["serve", "--model", "x", "--max-num-seqs", "0"], 64, "--max-num-seqs"),
        (["serve", "--model", "org/name"], 1, "--model org/name: no such directory"),
        (["serv"], 64, "No such command"),
        (["convert", "missing.gguf", "out"], 1, "missing.gguf"),
        (["verify", "missing"], 1, "missing: no such directory"),
    ],
)
def test_mistakes(volta_serve, tmp_path, arguments, status, message):
    done = volta_serve(*arguments, cwd=tmp_path)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_model_that_does_not_fit_is_refused(volta_serve, make_tiny):
    directory = make_tiny(lambda tensors: tensors.pop("model.norm.weight"))
    done = volta_serve("serve", "--model", directory, "--port", 0)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("volta-serve: error: ")
    assert "model.norm.weight: is missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify(volta_serve, make_tiny):
    directory = make_tiny()
    done = volta_serve("verify", directory)
    assert done.returncode == 1
    assert "SHA256SUMS" in done.stderr
    subprocess.run(
        "find . -type f ! -name SHA256SUMS -exec sha256sum {} + > SHA256SUMS",
        shell=True,
        cwd=directory,
        check=True,
    )
    assert volta_serve("verify", directory).returncode == 0
    with (directory / "tokenizer.json").open("a") as file:
        file.write(" ")
    done = volta_serve("verify", directory)
    assert done.returncode == 1
    assert "tokenizer.json" in done.stderr


def test_version(volta_serve):
    assert volta_serve("--version").stdout.startswith("volta-serve, version ")


def test_every_option_has_a_variable(volta_serve):
    variables = {"VOLTA_SERVE_MODEL": "from/the/environment", "VOLTA_SERVE_PORT": "0"}
    done = volta_serve("serve", env=os.environ | variables)
    assert "--model from/the/environment: no such directory" in done.stderr
    done = volta_serve("serve", env=os.environ | variables | {"VOLTA_SERVE_PORT": "x"})
    assert done.returncode == 64
    assert "'--port'" in done.stderr
