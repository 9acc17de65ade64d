"""Checkpoints of real models' shapes, sparse on disk, and the planner as a user calls it."""

import json
import os
import subprocess
import sys

import pytest
from checkpoints import write
from models import config_of, linear_in, shapes, stored

ONE = {"F32": b"\x00\x00\x80\x3f", "F8_E4M3": b"\x38"}


@pytest.fixture
def checkpoint(repo, tmp_path):
    """Write a checkpoint of the shape of tests/data/runtime/architectures/NAME.json.

    format_of names the row of each module; scales that are read are ones, the rest is holes.
    """

    def make(architecture, name, format_of=linear_in("dense"), quantization=None, **shape):
        file = repo / f"tests/data/runtime/architectures/{architecture}.json"
        config = json.loads(file.read_text())
        if quantization:
            config["quantization_config"] = quantization
        names = shapes(config_of(**config), **shape)
        return write(tmp_path / name, stored(names, format_of), config, shards=2)

    return make


@pytest.fixture
def volta_stack(tmp_path):
    """Run volta-stack on a machine without GPUs, 80 columns wide."""

    def run(*args, **env):
        return subprocess.run(
            [sys.executable, "-c", "from volta_provision.cli import main; main()", *map(str, args)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env={
                **os.environ,
                "COLUMNS": "80",
                "TERM": "dumb",
                "VOLTA_DOCTOR_SYSROOT": str(tmp_path / "sys"),
                **env,
            },
        )

    return run
