"""A model to judge, and the verb that judges it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from checkpoints import Spec, write

Done = "subprocess.CompletedProcess[str]"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


def llama_tensors() -> dict[str, Spec]:
    """Those of LLAMA, in FP16 and of zeros."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (256, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (256, 64),
    }
    for number in range(2):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (64,),
            f"{layer}.post_attention_layernorm.weight": (64,),
            f"{layer}.self_attn.q_proj.weight": (64, 64),
            f"{layer}.self_attn.k_proj.weight": (32, 64),
            f"{layer}.self_attn.v_proj.weight": (32, 64),
            f"{layer}.self_attn.o_proj.weight": (64, 64),
            f"{layer}.mlp.gate_proj.weight": (128, 64),
            f"{layer}.mlp.up_proj.weight": (128, 64),
            f"{layer}.mlp.down_proj.weight": (64, 128),
        }
    return {name: ("F16", shape) for name, shape in shapes.items()}


@pytest.fixture
def llama(tmp_path: Path) -> Callable[..., Path]:
    """Write a small sound Llama: tensors and fields of its config are changed, None takes out."""

    def make(
        name: str = "tiny-llama",
        tensors: Mapping[str, Any] = {},
        config: Mapping[str, Any] = {},
        **options: Any,
    ) -> Path:
        def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in {**old, **new}.items() if value is not None}

        return write(
            tmp_path / name, changed(llama_tensors(), tensors), changed(LLAMA, config), **options
        )

    return make


@pytest.fixture
def model(tmp_path: Path, repo: Path) -> Callable[..., Any]:
    """Run `volta-doctor model`, as on a machine without cards and without waivers."""

    def run(*args: object, **env: str) -> Any:
        state = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "COLUMNS": "100", "TERM": "dumb"}
        return subprocess.run(
            [sys.executable, "-m", "volta_doctor", "model", *map(str, args)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=60,
            env={**os.environ, **state, "VOLTA_DOCTOR_SYSROOT": str(tmp_path / "sys"), **env},
        )

    return run


@pytest.fixture
def judged(model: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Run it and return its JSON report."""

    def run(*args: object) -> dict[str, Any]:
        done = model(*args, "--format", "json")
        assert done.stderr == ""
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["summary"]["exit_code"] == done.returncode
        return report

    return run
