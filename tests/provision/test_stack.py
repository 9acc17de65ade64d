"""stack.yaml is read strictly: every mistake is named, with its place and what is allowed."""

import pytest

from volta_provision.errors import StackError
from volta_provision.stack import Serve, read_models, read_stack

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
        (GOOD + "engine: vllm\n", ["engine", "vllm"]),
        ("model: smollm2\n", ["model", "'smollm2' is unknown", "known: smollm2-135m"]),
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
