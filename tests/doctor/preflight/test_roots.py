"""A checkpoint that is damaged in one way has one root cause, however much follows from it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Damage = Callable[[Path], object]
SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def pointer(path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4000000\n"
    (path / SHARD).write_text(text)


def all_pointers(path: Path) -> None:
    for shard in path.glob("*.safetensors"):
        shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")


def without_a_tensor(path: Path) -> None:
    index = json.loads((path / INDEX).read_text())
    del index["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    (path / INDEX).write_text(json.dumps(index))


def fields(**changed: object) -> Damage:
    def change(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changed))

    return change


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a pointer": (pointer, "lfs-pointer"),
    "pointers alone": (all_pointers, "lfs-pointer"),
    "cut short": (lambda path: os.truncate(path / SHARD, 30_000), "st-header"),
    "empty": (lambda path: os.truncate(path / SHARD, 0), "st-header"),
    "an error page": (lambda path: (path / SHARD).write_text("<html>404</html>"), "st-header"),
    "a shard is not there": (lambda path: (path / SHARD).unlink(), "st-index"),
    "one shard in place of another": (
        lambda path: shutil.copy(path / "model-00001-of-00003.safetensors", path / SHARD),
        "st-index",
    ),
    "an index without a tensor": (without_a_tensor, "st-index"),
    "half a config": (lambda path: os.truncate(path / "config.json", 40), "config-json"),
    "no config": (lambda path: (path / "config.json").unlink(), "config-json"),
    "a layer more in the config": (fields(num_hidden_layers=3), "tensor-set"),
    "a layer less in the config": (fields(num_hidden_layers=1), "tensor-set"),
}


@pytest.mark.parametrize(("damage", "root"), DAMAGES.values(), ids=DAMAGES)
def test_one_damage_is_one_fault(damage, root, llama, judged):
    path = llama(shards=3)
    damage(path)
    report = judged(path, "--gpu", "v100-sxm2-16gb", "--ignore", "tokenizer")
    roots = [
        (finding["id"], finding["status"])
        for finding in report["findings"]
        if finding["status"] in ("fail", "unknown") and not finding["folded_under"]
    ]
    assert set(roots) == {(root, "fail")}
    assert report["summary"]["exit_code"] == 2
