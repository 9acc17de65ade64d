"""stack.yaml is read strictly: every mistake is named, with its place and what is allowed."""

import pytest

from volta_provision.errors import StackError
from volta_provision.lockfile import make_lock
from volta_provision.stack import Serve, read_lockable, read_models, read_stack

GOOD = "model: smollm2-135m-instruct-nvfp4\n"


def stack(tmp_path, text):
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    return path


def test_the_committed_stack_is_valid(repo):
    assert read_stack(repo / "stack.yaml").model in read_models()


def test_defaults(tmp_path):
    assert read_stack(stack(tmp_path, GOOD)).serve == Serve()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (GOOD + "prot: 8000\n", ["unknown key 'prot'", "profile", "engine"]),
        (GOOD + "serve: {prot: 1}\n", ["unknown key 'serve.prot'", "did you mean 'port'"]),
        (GOOD + "serve: {port: 70000}\n", ["serve.port", "65535"]),
        (GOOD + "serve: {port: many}\n", ["serve.port", "int"]),
        (GOOD + "profile: a100\n", ["profile", "a100"]),
        (GOOD + "engine: vlm\n", ["engine: 'vlm' is unknown", "mean 'vllm'", "1cat-vllm"]),
        (GOOD + "serve: {gpu_memory_utilization: 1.5}\n", ["gpu_memory_utilization", "1.0"]),
        (GOOD + "serve: {tensor_parallel_size: 0}\n", ["serve.tensor_parallel_size", "1"]),
        ("model: smollm2\n", ["model", "'smollm2' is unknown", "known: smollm2-135m"]),
        ("model: smollm2\n", ["by a path with a slash (./smollm2)"]),
        ("profile: cpu\n", ["model", "missing"]),
        ("model: [\n", ["not readable as YAML", "line 2"]),
    ],
)
def test_mistakes_are_named(tmp_path, text, parts):
    path = stack(tmp_path, text)
    with pytest.raises(StackError) as error:
        read_stack(path)
    for part in [str(path), *parts]:
        assert part in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StackError, match=r"nowhere\.yaml: no such file"):
        read_stack(tmp_path / "nowhere.yaml")


FULL = """model: /models/Qwen2.5-7B
profile: v100
engine: 1cat-vllm
serve: {max_model_len: 8192, tensor_parallel_size: 2, kv_cache_dtype: fp8_e5m2}
"""


def test_what_a_planner_writes_is_read(tmp_path):
    read = read_stack(stack(tmp_path, FULL))
    assert (read.engine, read.serve.tensor_parallel_size) == ("1cat-vllm", 2)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (FULL, ["engine: 1cat-vllm", "embedded can"]),
        (FULL.replace("1cat-vllm", "embedded"), ["model: /models/Qwen2.5-7B", "smollm2-135m"]),
        (GOOD + "serve: {dtype: half}\n", ["serve.dtype", "max_model_len, max_num_seqs can"]),
    ],
)
def test_what_cannot_be_locked_is_named(tmp_path, text, parts):
    path = stack(tmp_path, text)
    with pytest.raises(StackError) as error:
        read_lockable(path)
    for part in [str(path), "cannot be locked yet", *parts]:
        assert part in str(error.value)


def test_flags_that_are_not_set_are_not_in_the_lock(tmp_path):
    lock = make_lock(read_lockable(stack(tmp_path, GOOD)), "cpu", "sha256:0")
    assert b"tensor_parallel_size" not in lock.encode()


FILES = "[{name: config.json, size: 2, sha256: " + "a" * 64 + "}]"
HUB = "{kind: hub, repo: a/b, revision: " + "b" * 40 + f", files: {FILES}}}"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (HUB.replace("revision", "revison"), ["unknown key 'source.revison'", "mean 'revision'"]),
        (HUB.replace("size", "bytes"), ["unknown key 'source.files[0].bytes'", "size"]),
        (HUB.replace("b" * 40, "main"), ["source.revision", "[0-9a-f]{40}"]),
        (HUB.replace("a" * 64, "aa"), ["source.files[0].sha256", "[0-9a-f]{64}"]),
        (HUB.replace("config.json", "../config.json"), ["source.files[0].name"]),
        (HUB.replace(FILES, "[]"), ["source.files", "length"]),
        (HUB.replace("kind: hub", "kind: hug"), ["source.kind", "'hug'"]),
        ("{kind: tree, url: /srv/models/x, files: " + FILES + "}", ["source.url", "https?|file"]),
        ("/srv/models/x", ["source: Expected `object`"]),
    ],
)
def test_mistakes_in_the_table_of_models_are_named(tmp_path, source, parts):
    path = tmp_path / "models.yaml"
    path.write_text(f"mine: {{name: Mine, source: {HUB}}}\n")
    assert read_models(path)["mine"].name == "Mine"
    path.write_text(f"mine: {{name: Mine, source: {source}}}\n")
    with pytest.raises(StackError) as error:
        read_models(path)
    for part in [f"{path}: mine: ", *parts]:
        assert part in str(error.value)
