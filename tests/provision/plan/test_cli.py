"""volta-stack plan as a user calls it."""

import json
import os
import shutil
import subprocess
import sys

import jsonschema
import msgspec
import pytest
import yaml
from plan_example import MAIN, PAGE, answer, shown

from volta_provision.plan import schema
from volta_provision.stack import read_stack

CARDS = ("--gpu", "v100-sxm2-16gb", "--count", "2")


def test_the_example_of_the_page_is_todays_answer():
    assert shown() == answer(), f"python tests/lib/plan_example.py renews {PAGE.name}"


def test_it_is_one_screen_of_ascii(checkpoint, volta_stack):
    done = volta_stack("plan", checkpoint("qwen2.5-7b").name, *CARDS)
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert done.stdout.isascii()
    assert lines[0].startswith("qwen2.5-7b: runs, but with 1 warning: 16 requests")


def test_the_command_can_be_copied(checkpoint, volta_stack):
    path = checkpoint("qwen2.5-7b", name="it's $HOME")
    done = volta_stack("plan", path, *CARDS)
    start = done.stdout.index("start ")
    shell = done.stdout[start : done.stdout.index("\n2 GPUs")].removeprefix("start ")
    words = os.popen(f"printf '%s\\n' {shell}").read().splitlines()
    report = json.loads(volta_stack("plan", path, *CARDS, "--format", "json").stdout)
    choice = report["choice"]
    assert words == [f"{k}={v}" for k, v in choice["env"].items()] + choice["command"]
    assert str(path) in words


def test_json_is_as_its_schema_says(checkpoint, volta_stack):
    assert schema.SCHEMA_JSON.read_text() == schema.schema_json(), (
        "python -m volta_provision.plan.schema renews schema.json"
    )
    path = checkpoint("qwen2.5-7b")
    for options in (CARDS, CARDS[:2], (*CARDS, "--concurrency", "200")):
        done = volta_stack("plan", path, *options, "--format", "json")
        report = json.loads(done.stdout)
        jsonschema.validate(report, json.loads(schema.schema_json()))
        assert report["exit_code"] == done.returncode


def test_write_makes_a_stack_that_is_read(checkpoint, volta_stack, tmp_path):
    path, file = checkpoint("qwen2.5-7b"), tmp_path / "stack.yaml"
    arguments = ("plan", path.name, *CARDS, "--engine", "vllm", "--write", file)
    assert volta_stack(*arguments, "--kv-cache-dtype", "auto").returncode == 1
    stack = read_stack(file)
    assert (stack.engine, stack.model, stack.profile) == ("vllm", str(path), "v100")
    assert stack.serve.tensor_parallel_size == 2
    assert stack.serve.max_model_len == 8192
    assert yaml.safe_load(file.read_text())["serve"]["kv_cache_dtype"] == "auto"
    before = file.read_bytes()
    again = volta_stack(*arguments)
    assert again.returncode == 64
    assert "--force replaces it" in again.stderr
    assert file.read_bytes() == before
    assert volta_stack(*arguments, "--force").returncode == 1
    assert file.read_bytes() != before
    lock = volta_stack("lock", "--stack", file)
    assert "engine: vllm cannot be locked yet" in lock.stderr


def test_a_model_of_models_yaml_is_found_where_it_is_installed(checkpoint, volta_stack, tmp_path):
    name, file = "smollm2-135m-instruct-nvfp4", tmp_path / "stack.yaml"
    installed = tmp_path / "root/models/SmolLM2-135M-Instruct-NVFP4"
    installed.parent.mkdir(parents=True)
    checkpoint("qwen2.5-7b").rename(installed)
    done = volta_stack("plan", name, *CARDS, "--write", file)
    assert done.returncode == 1, done.stderr
    assert str(installed) in done.stdout.replace(" \\\n          ", " ")
    assert read_stack(file).model == name


def test_nothing_is_written_of_what_does_not_run(checkpoint, volta_stack, tmp_path):
    file = tmp_path / "stack.yaml"
    arguments = (*CARDS, "--context", "8192", "--concurrency", "500", "--write", file)
    done = volta_stack("plan", checkpoint("qwen2.5-7b"), *arguments)
    assert done.returncode == 2
    assert "was not written: nothing runs" in done.stderr
    assert not file.exists()


def test_names_cannot_write_to_the_terminal(checkpoint, volta_stack):
    path = checkpoint("qwen2.5-7b", name="a\x1b[2Jb")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["\x1b]0;x\x07"]}))
    done = volta_stack("plan", path, *CARDS, "-v")
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout


def test_without_a_place_to_write_to_no_plan_is_told(checkpoint):
    """Python's own exit code would be 1: it runs, but."""
    path = checkpoint("qwen2.5-7b")
    for stdout, expected in ((">/dev/full", 3), (">&-", 1)):
        line = f'exec "$@" {stdout}'
        command = ["sh", "-c", line, "sh", sys.executable, "-c", MAIN, "plan", str(path), *CARDS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == expected, done.stderr
        assert "Traceback" not in done.stderr


def test_json_holds_any_path(checkpoint, volta_stack):
    path = checkpoint("qwen2.5-7b", name=os.fsdecode(b"a\xff") + "\u202e")
    done = volta_stack("plan", path, *CARDS, "--format", "json")
    assert done.stdout.isascii()
    assert str(path) in json.loads(done.stdout)["choice"]["command"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 64, "nowhere: no such file or directory"),
        (["Qwen/Qwen3-8B"], 64, "hf download Qwen/Qwen3-8B --include '*.json'"),
        (["smollm2-135m-instruct-nvfp4"], 3, "`./volta up`"),
        ([".", "--gpu", "a100"], 64, "no 'a100'; there are v100-sxm2-16gb"),
        ([".", "--engine", "vlm"], 64, "no 'vlm'; there are 1cat-vllm"),
        ([".", "--count", "2"], 64, "--count needs --gpu"),
        ([".", "other"], 64, "one MODEL is planned for"),
        ([".", "--hosts", "x.json", *CARDS], 64, "choose one of them"),
        ([".", "--hosts", "x.json"], 64, "x.json: No such file"),
        ([""], 64, "it is empty"),
        (["a" * 300], 64, "File name too long"),
        ([".", "--gpu-memory-utilization", "nan"], 64, "'nan' is no number"),
        ([".", "--concurrency", "9" * 400], 64, "is not in the range"),
        (["."], 64, "name the cards with --gpu and --count"),
    ],
)
def test_wrong_usage_is_one_sentence(volta_stack, arguments, code, said):
    cards = [] if len(arguments) > 1 or arguments == ["."] else CARDS
    done = volta_stack("plan", *arguments, *cards)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_directory_without_a_checkpoint_cannot_be_told(volta_stack, tmp_path):
    (tmp_path / "empty").mkdir()
    done = volta_stack("plan", "empty", *CARDS)
    assert done.returncode == 3
    assert "empty: could not tell: empty holds no weights" in " ".join(done.stdout.split())


def test_hosts_are_read_and_those_that_differ_named(checkpoint, volta_stack, snapshot):
    def fewer(sections):
        sections["nvml"]["gpus"].pop()

    files = [snapshot("gpu1"), snapshot("gpu2"), snapshot("gpu3", fewer)]
    done = volta_stack("plan", checkpoint("qwen2.5-7b"), "--hosts", *files)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stderr
    assert "host gpu1, gpu2: 2 x Tesla V100 SXM2 32GB" in text
    assert "host gpu3: 1 x Tesla V100 SXM2 32GB" in text
    assert "planned for the least that each of them has" in text
    assert "on 1 x Tesla V100 SXM2 32GB" in text


def test_beside_neighbours_the_share_is_what_they_leave(checkpoint, volta_stack, snapshot):
    def busy(sections):
        sections["nvml"]["gpus"][0]["memory"]["used"] = 30 << 30
        sections["nvml"]["gpus"][1]["memory"]["used"] = 8 << 30

    arguments = ("plan", checkpoint("qwen2.5-7b"), "--hosts", snapshot("gpu1", busy))
    options = ("--engine", "vllm", "--concurrency", "4", "--format", "json")
    choice = json.loads(volta_stack(*arguments, *options).stdout)["choice"]
    assert choice["gpus"] == {"gpu1": [1]}
    assert choice["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    [memory] = choice["memory"]
    share = float(choice["command"][choice["command"].index("--gpu-memory-utilization") + 1])
    assert share * memory["total"] <= memory["total"] - (8 << 30)
    assert share >= 0.7
    idle = json.loads(volta_stack(*arguments, *options, "--idle").stdout)["choice"]
    assert idle["memory"][0]["neighbours"] == 0
    assert msgspec.json.encode(idle).find(b"gpu-memory-utilization") == -1


@pytest.mark.skipif(not shutil.which("cc"), reason="no cc to build the fake driver with")
def test_this_very_host_is_planned_for(checkpoint, repo, tmp_path):
    """Of a DGX-1 GPU 3 is lost: the other four that NVLink joins are taken."""
    host = [sys.executable, repo / "tests/fakegpu/fakegpu.py", "run", "gpu-lost", "--"]
    plan = [sys.executable, "-c", MAIN, "plan", checkpoint("qwen2.5-7b"), "--tp", "4"]
    command = [str(word) for word in (*host, *plan, "--format", "json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    report = json.loads(done.stdout)
    assert report["choice"]["env"]["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    [host] = report["hosts"]
    assert host["gpus"] == ["Tesla V100 SXM2 16GB"] * 7
    assert host["notes"] == ["GPU 3 is not used: NVML cannot open it: 15 (GPU is lost)"]
