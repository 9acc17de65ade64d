"""A directory as a whole: what is read, what is wrong with it, and who refuses to serve it."""

import json
import os
import subprocess
import sys

import pytest
from checkpoints import write

from volta_runtime.checkpoint import CheckpointError, inspect, open_checkpoint

CONFIG = {"model_type": "llama", "vocab_size": 16}
TENSORS = {
    "model.embed_tokens.weight": ("F16", (16, 32)),
    "model.norm.weight": ("F16", (32,)),
    "lm_head.weight": ("F16", (16, 32)),
}
INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 4976698672\n"


@pytest.fixture
def faults(tmp_path):
    """Write two shards, change them, and return (check, level, message) of the reader's faults."""

    def read(change=None, index=None, shards=2):
        path = write(tmp_path / "m", TENSORS, CONFIG, shards)
        if change:
            change(path)
        if index:
            held = json.loads((path / INDEX).read_text())
            held["weight_map"] |= index
            (path / INDEX).write_text(json.dumps(held))
        own = ("config-json", "lfs-pointer", "pickle-weights", "shard-mixed-revisions")
        own += ("st-header", "st-index", "gguf-header")
        return [f for f in inspect(path).faults if f.check in own]

    return read


def test_a_sound_directory_is_read_whole(tmp_path):
    checkpoint = inspect(write(tmp_path / "m", TENSORS, CONFIG, shards=2))
    assert checkpoint.contents.kind == "safetensors"
    assert checkpoint.tensors["lm_head.weight"].file.name == FIRST
    assert checkpoint.contents.index["model.norm.weight"] == SECOND
    assert [file.name for file in checkpoint.contents.files] == [
        "config.json",
        FIRST,
        SECOND,
        INDEX,
    ]
    assert checkpoint.contents.total_size == 16 * 32 * 4 + 64
    assert {fault.level for fault in checkpoint.faults} == {"warn"}  # it has no tokenizer
    assert open_checkpoint(checkpoint.path).modules.keys() == checkpoint.modules.keys()


def move(name):
    return lambda path: (path / name).rename(path / f"{name}.part")


FAULTS = {
    "a shard is missing": (
        {"change": move(SECOND)},
        ("st-index", "fail", f"1 of 2 shards that it names are missing: {SECOND}"),
    ),
    "a tensor is in none": (
        {"index": {"x.weight": FIRST}},
        ("st-index", "fail", f"{INDEX} lists it there and no shard has it"),
    ),
    "a tensor is in another": (
        {"index": {"lm_head.weight": SECOND}},
        ("st-index", "fail", f"{INDEX} says it is in {SECOND}, and it is in {FIRST}"),
    ),
    "a name that leads elsewhere": (
        {"index": {"x.weight": "../secret.safetensors"}},
        ("st-index", "fail", "a shard is no name of a file in this directory"),
    ),
    "a name from the root": (
        {"index": {"x.weight": "/etc/passwd"}},
        ("st-index", "fail", "a shard is no name of a file in this directory"),
    ),
    "an index that is none": (
        {"change": lambda path: (path / INDEX).write_text("[]")},
        ("st-index", "fail", "not a sound index"),
    ),
    "an index without names": (
        {"change": lambda path: (path / INDEX).write_text('{"weight_map": {}}')},
        ("st-index", "fail", "weight_map is empty: it names no tensor"),
    ),
    "another sum of sizes": (
        {
            "change": lambda path: (path / INDEX).write_text(
                (path / INDEX).read_text().replace('"total_size": 2112', '"total_size": 99')
            )
        },
        ("shard-mixed-revisions", "warn", "total_size is 99 bytes and the tensors of all"),
    ),
    "a shard that is a pointer": (
        {"change": lambda path: (path / SECOND).write_text(POINTER)},
        ("lfs-pointer", "fail", "a Git LFS pointer of 73 bytes to a file of 4,976,698,672 bytes"),
    ),
    "a config that is a pointer": (
        {"change": lambda path: (path / "config.json").write_text(POINTER)},
        ("lfs-pointer", "fail", "a Git LFS pointer"),
    ),
    "a tokenizer that is a pointer": (
        {"change": lambda path: (path / "tokenizer.model").write_text(POINTER)},
        ("lfs-pointer", "fail", "a Git LFS pointer"),
    ),
    "no config": (
        {"change": lambda path: (path / "config.json").unlink()},
        ("config-json", "fail", "missing: it says what the tensors are of"),
    ),
    "a config that is damaged": (
        {"change": lambda path: (path / "config.json").write_text("{")},
        ("config-json", "fail", "not sound JSON"),
    ),
    "a config of another kind": (
        {"change": lambda path: (path / "generation_config.json").write_text("[]")},
        ("config-json", "fail", "not a JSON object"),
    ),
    "a config of more values than any has": (
        {"change": lambda path: (path / "config.json").write_text(f"[{'[],' * 250_000}[]]")},
        ("config-json", "fail", "500,002 values, where there can be"),
    ),
    "an index of more values than any has": (
        {"change": lambda path: (path / INDEX).write_text(f"[{'[],' * 250_000}[]]")},
        ("st-index", "fail", "500,002 values, where there can be"),
    ),
    "a config without end": (
        {"change": lambda path: (path / "config.json").write_text('{"a":' * 99_999)},
        ("config-json", "fail", "not sound JSON"),
    ),
    "shards without their index": (
        {"change": lambda path: (path / INDEX).unlink()},
        ("st-index", "warn", f"2 safetensors files and no {INDEX}"),
    ),
    "shards of another total lie there": (
        {"change": lambda path: (path / "model-00003-of-00003.safetensors").touch()},
        ("shard-mixed-revisions", "warn", "numbered of 2 and of 3"),
    ),
    "a pickle beside": (
        {"change": lambda path: (path / "pytorch_model.bin").touch()},
        ("pickle-weights", "info", "are not used: pytorch_model.bin"),
    ),
    # What would hold up who opens it, or cannot be opened.
    "a pipe in the place of a shard": (
        {"change": lambda path: ((path / SECOND).unlink(), os.mkfifo(path / SECOND))},
        ("st-header", "fail", "cannot be read: it is not a file"),
    ),
    "a pipe in the place of a config": (
        {"change": lambda path: os.mkfifo(path / "generation_config.json")},
        ("config-json", "fail", "cannot be read: it is not a file"),
    ),
    "a pipe in the place of the index": (
        {"change": lambda path: ((path / INDEX).unlink(), os.mkfifo(path / INDEX))},
        ("st-index", "fail", "cannot be read: it is not a file"),
    ),
    "a directory in the place of a shard": (
        {"change": lambda path: ((path / SECOND).unlink(), (path / SECOND).mkdir())},
        ("st-header", "fail", "cannot be read: it is not a file"),
    ),
    "a link that leads to itself": (
        {"change": lambda path: ((path / SECOND).unlink(), (path / SECOND).symlink_to(SECOND))},
        ("st-header", "fail", "cannot be read: Too many levels of symbolic links"),
    ),
    "a link that leads nowhere": (
        {"change": lambda path: ((path / SECOND).unlink(), (path / SECOND).symlink_to("gone"))},
        ("st-header", "fail", "cannot be read: No such file or directory"),
    ),
}


@pytest.mark.parametrize(("given", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(faults, given, expected):
    check, level, message = expected
    found = faults(**given)
    assert [(fault.check, fault.level) for fault in found if message in fault.message] == [
        (check, level)
    ], found


def test_a_tensor_in_two_shards_is_named_with_both(faults, tmp_path):
    def copy(path):
        write(path / "other", {"lm_head.weight": TENSORS["lm_head.weight"]}, {})
        (path / "other" / "model.safetensors").rename(path / SECOND)

    found = faults(copy)
    twice = next(fault for fault in found if fault.found == "in two")
    assert (twice.tensor, twice.file.name) == ("lm_head.weight", SECOND)
    assert twice.message == f"it is in {FIRST} too"


def test_only_config_and_index_tell_what_is_to_come(tmp_path):
    path = write(tmp_path / "m", TENSORS, CONFIG, shards=2)
    for shard in (FIRST, SECOND):
        (path / shard).unlink()
    contents = inspect(path).contents
    assert (contents.kind, contents.tensors) == ("index", {})
    assert contents.index.keys() == TENSORS.keys()
    (fault,) = contents.faults
    assert fault.message == f"2 of 2 shards that it names are missing: {FIRST}, {SECOND}"


def test_shards_that_are_missing_show_without_an_index_too(tmp_path):
    path = write(tmp_path / "m", TENSORS, CONFIG, shards=2)
    (path / SECOND).unlink()
    (path / INDEX).unlink()
    (fault,) = inspect(path).contents.faults
    assert fault.message == f"1 of 2 shards model-* are missing, and so is {INDEX}"


def test_who_serves_gets_the_first_fault_and_where_to_read_more(tmp_path):
    path = write(tmp_path / "m", TENSORS, CONFIG)
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(path)
    assert str(raised.value).startswith(f"{path}/model.safetensors: the file is empty")
    assert f"`volta-doctor model {path}`" in str(raised.value)


def test_a_directory_without_weights_is_not_served(tmp_path):
    with pytest.raises(CheckpointError, match="there are no weights in it"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="gone: no such file or directory"):
        inspect(tmp_path / "gone")


def test_reading_checkpoints_needs_neither_torch_nor_numpy():
    code = (
        "import sys; import volta_runtime.checkpoint;"
        " print([m for m in ('torch', 'numpy', 'jinja2') if m in sys.modules])"
    )
    path = ":".join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
