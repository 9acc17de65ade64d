"""Checkpoints of real models' shapes, sparse on disk, and the planner as a user calls it."""

import json
import os
import subprocess
import sys

import numpy
import pytest
from checkpoints import write
from models import linear_in, shapes, stored
from plan_example import MAIN, TOKENIZER

from volta_provision.plan import planner
from volta_provision.plan.candidates import Wanted
from volta_provision.plan.hosts import of_flag
from volta_runtime.checkpoint.architecture import from_config
from volta_runtime.checkpoint.scales import Scales


@pytest.fixture
def checkpoint(repo, tmp_path):
    """Write a checkpoint of the shape of tests/data/runtime/architectures/NAME.json, all zeros."""

    def make(architecture, row="dense", quantization=None, name=None, shards=2, **shape):
        file = repo / f"tests/data/runtime/architectures/{architecture}.json"
        config = json.loads(file.read_text())
        if quantization:
            config["quantization_config"] = quantization
        tensors = stored(shapes(from_config(config), **shape), linear_in(row))
        directory = tmp_path / (name or architecture)
        return write(directory, tensors, config, shards=shards, files=TOKENIZER)

    return make


@pytest.fixture
def zero_scales(monkeypatch):
    """Let zeros pass as scales: gigabytes of sound ones would have to be written."""
    monkeypatch.setattr(planner, "read_scales", lambda *_: Scales({}, 0, 0, {}))


@pytest.fixture
def gguf_7b(tmp_path):
    """Write Qwen2.5-7B's shape as Q4_K_M, sparse."""
    gguf = pytest.importorskip("gguf")
    types = gguf.GGMLQuantizationType
    layers, hidden, inner, words, kv = 28, 3584, 18944, 152064, 512
    file = tmp_path / "qwen2.5-7b-q4_k_m.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(28)
    writer.add_head_count_kv(4)
    writer.add_vocab_size(words)

    def add(name, n, k, kind):
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        row = k // weights * size
        shape = (n, row) if n > 1 else (row,)
        writer.add_tensor_info(f"{name}.weight", shape, numpy.dtype("u1"), n * row, kind)

    add("token_embd", words, hidden, types.Q4_K)
    for number in range(layers):
        more = types.Q6_K if number % 2 else types.Q4_K
        for name, n, k, kind in (
            ("attn_norm", 1, hidden, types.F32),
            ("ffn_norm", 1, hidden, types.F32),
            ("attn_q", hidden, hidden, types.Q4_K),
            ("attn_k", kv, hidden, types.Q4_K),
            ("attn_v", kv, hidden, more),
            ("attn_output", hidden, hidden, types.Q4_K),
            ("ffn_gate", inner, hidden, types.Q4_K),
            ("ffn_up", inner, hidden, types.Q4_K),
            ("ffn_down", hidden, inner, more),
        ):
            add(f"blk.{number}.{name}", n, k, kind)
    add("output_norm", 1, hidden, types.F32)
    add("output", words, hidden, types.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    infos = [info for tensors in writer.tensors for info in tensors.values()]
    pad = writer.data_alignment
    data = sum(gguf.GGUFWriter.ggml_pad(info.nbytes, pad) for info in infos)
    os.truncate(file, gguf.GGUFWriter.ggml_pad(file.stat().st_size, pad) + data)
    return file


@pytest.fixture
def plan():
    """Plan for cards of one kind."""

    def run(path, gpu="v100-sxm2-16gb", count=1, lower=(), context=8192, concurrency=16, **wanted):
        asked = Wanted(context=context, concurrency=concurrency, **wanted)
        return planner.planned(str(path), [of_flag(gpu, count)], asked, frozenset(lower))

    return run


@pytest.fixture
def snapshot(repo, tmp_path):
    """Write the healthy host (2 x V100-SXM2-32GB, one GiB taken on each), changed, as a file."""

    def write(name, change=lambda sections: None):
        healthy = repo / "tests/data/doctor/healthy"
        sections = {
            section: json.loads((healthy / f"{section}.json").read_text())
            for section in ("host", "pci", "nvml", "topo")
        }
        sections["host"]["hostname"] = name
        change(sections)
        told = {key: {"ok": True, "data": data} for key, data in sections.items()}
        path = tmp_path / f"{name}.json"
        path.write_text(
            json.dumps(
                {
                    "schema": 1,
                    "tool": "volta-doctor 0.1.0",
                    "taken": "2026-11-30T12:00:00+00:00",
                    "facts": told,
                }
            )
        )
        return path

    return write


@pytest.fixture
def volta_stack(tmp_path):
    """Run volta-stack on a machine without GPUs, on a terminal of 80 columns."""

    def run(*args, **env):
        return subprocess.run(
            [sys.executable, "-c", MAIN, *map(str, args)],
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
                "VOLTA_ROOT": str(tmp_path / "root"),
                **env,
            },
        )

    return run
