"""`volta-doctor model` from outside: what it says of a model, its exit codes, its speed."""

import json
import os
import shutil
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import jsonschema
import pytest
from plan_example import MAIN

from volta_doctor import docs
from volta_doctor.report import FORMATS

GPU = ("--gpu", "v100-sxm2-16gb")


def status(report, check_id):
    return {finding["status"] for finding in report["findings"] if finding["id"] == check_id}


def test_a_sound_model_is_told_and_no_check_fails(llama, model):
    done = model(llama(shards=2), *GPU)
    assert done.returncode in (0, 1), done.stdout  # it has no tokenizer
    head = done.stdout.split("\n\n")[0]
    assert head.startswith("tiny-llama: ")
    for words in (
        "LlamaForCausalLM, 106,816 parameters, 2 layers",
        "in 2 files (safetensors)",
        "modules: 21 dense (",
        "read: headers of 2 files",
        "for: 1 x Tesla V100 SXM2 16GB (--gpu)",
    ):
        assert words in head
    assert "volta-stack plan" in done.stdout


def test_the_map_of_modules(llama, model, judged):
    path = llama()
    assert "  2 x dense  model.layers.*.mlp.down_proj  [64, 128]" in model(path, "-v").stdout
    report = judged(path, *GPU)
    schema = json.loads(docs.MODEL_SCHEMA_JSON.read_text())
    jsonschema.validate(report, schema)
    modules = {group["name"]: group for group in report["model"]["modules"]}
    assert modules["model.layers.*.mlp.down_proj"]["modules"] == 2
    assert modules["lm_head"]["shape"] == [256, 64]
    assert sum(group["modules"] for group in modules.values()) == 21
    assert sum(group["bytes"] for group in modules.values()) == 2 * report["model"]["parameters"]


def test_without_cards_their_checks_are_skipped_and_say_how_to_make_them(llama, judged):
    skipped = [f for f in judged(llama())["findings"] if "--gpu" in f["message"]]
    assert {"mem-fit", "host-mem"} <= {finding["id"] for finding in skipped}
    assert {finding["status"] for finding in skipped} == {"skip"}


def test_the_cards_of_a_snapshot_count(llama, judged, saved):
    report = judged(llama(), "--snapshot", saved({}))
    assert report["profile"]["reason"] == "2 x Tesla V100 SXM2 32GB (NVML)"
    assert report["host"] == "gpu1"
    assert status(report, "mem-fit") == {"ok"}
    assert status(report, "host-mem") != {"skip"}


def test_cards_are_known_by_the_bus_where_the_driver_is_not(llama, judged, saved):
    reason = judged(llama(), "--snapshot", saved({"nvml": "no driver"}))["profile"]["reason"]
    assert reason == "2 x Tesla V100 SXM2 32GB (the PCI bus and data sheets)"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, "There is no checkpoint in "),
        ({"README.md": "x", "config.json": "{}"}, "There is no checkpoint in "),
    ],
)
def test_a_directory_without_a_checkpoint_cannot_be_told(tmp_path, model, content, says):
    (tmp_path / "empty").mkdir()
    for name, text in content.items():
        (tmp_path / "empty" / name).write_text(text)
    done = model(tmp_path / "empty")
    assert done.returncode == 3
    assert says in done.stdout
    assert "*.safetensors" in done.stdout
    assert " ok" not in done.stdout.split("\n", 1)[0]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["/no/such/model"], "/no/such/model: No such file"),
        (["Qwen/Qwen3-32B"], "hf download Qwen/Qwen3-32B --include '*.json'"),
        (["a\udce4\x1b"], "No such file"),
        ([], "Missing argument"),
        ([""], "it is empty"),
        ([".", "--gpu", "v100"], "--gpu: no card 'v100'; there are v100-sxm2-16gb"),
        ([".", "--engine", "vlm"], "--engine: no engine 'vlm'; there are 1cat-vllm"),
        ([".", "--count", "2"], "--count needs --gpu"),
        ([".", "--snapshot", "x", *GPU], "choose one"),
        ([".", "--tp", "0"], "0"),
        ([".", "--tp", "1000000000"], "1<=x<=1024"),
        ([".", "--tp", "1024", "--pp", "2"], "2,048 GPUs, --tp times --pp, are more than 1,024"),
        ([".", "--count", "1000000000", *GPU], "1<=x<=1024"),
        ([".", "--max-model-len", "9" * 400], "is not in the range"),
        ([".", "--gpu-memory-utilization", "nan"], "'nan'"),
        ([".", "--select", "st-heder"], "did you mean st-header"),
        ([".", "--select", "ecc-mode"], "volta-doctor check --select ecc-mode"),
        ([".", "--waivers", "/no/such"], "/no/such"),
    ],
)
def test_wrong_usage_is_64(model, args, says):
    done = model(*args)
    assert (done.returncode, done.stdout) == (64, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


def test_check_says_which_verb_judges_models(doctor):
    done = doctor("check", "--select", "st-header")
    assert done.returncode == 64
    assert "volta-doctor model PATH --select st-header" in done.stderr


def test_a_waiver_holds_for_a_model(llama, judged, tmp_path):
    path = llama()
    os.truncate(path / "model.safetensors", 100_000)
    failed = judged(path, *GPU)
    assert failed["summary"]["exit_code"] == 2
    ids = {finding["id"] for finding in failed["findings"] if finding["status"] == "fail"}
    waivers = "\n".join(f"- {{id: {name}, reason: known, expires: 2100-01-01}}" for name in ids)
    (tmp_path / "waivers.yaml").write_text(waivers)
    borne = judged(path, *GPU, "--waivers", tmp_path / "waivers.yaml")
    assert borne["summary"]["exit_code"] != 2
    assert borne["summary"]["waived"] >= 1


NAMES = {
    "escape": "model.\x1b]0;owned\x07\x1b[2J.weight",
    "lines": "model.x\nFAIL gpu-lost\r\n::error::.weight",
    "direction": "model.\u202egnp.\u2066x\u200f.weight",
    "no width": "model.a\u200bb\ufeff\u00ad\u2060\U000e0041.weight",
    "markup": "model.<b>|`x`[a](b)&amp;_*.weight",
    "surrogate": "model.\ud800.weight",
    "long": "model." + "x" * (1 << 20) + ".weight",
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", NAMES)
def test_names_are_only_names_in_any_format(llama, model, form, kind):
    name = NAMES[kind]
    path = llama(
        tensors={name: ("I64", (3,)), "model.norm.weight": None},
        config={"architectures": [name], "torch_dtype": name},
        files={
            "tokenizer_config.json": json.dumps({"chat_template": name}),
            "tokenizer.json": json.dumps({"model": {"vocab": {name: 0}}}),
        },
    )
    done = model(path, "--format", form, "-v")
    assert done.returncode in (0, 1, 2, 3)
    assert done.stderr == ""
    assert len(done.stdout) < 200_000
    shown = done.stdout.replace("\n", "")
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs")} == set()
    assert "\nFAIL gpu-lost" not in done.stdout
    assert "\n::error::" not in done.stdout


@pytest.mark.parametrize("width", ["0", "1", "40", "x"])
def test_the_verdict_is_told_however_narrow_the_terminal(llama, monkeypatch, model, width):
    monkeypatch.setenv("COLUMNS", width)
    assert model(llama()).stdout.startswith("tiny-llama: warnings (")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv makes an ordinary user")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_may_not_be_looked_at_cannot_be_told(tmp_path):
    (tmp_path / "closed" / "model").mkdir(parents=True)
    user = _ordinary_user(tmp_path)
    (tmp_path / "closed").chmod(0)
    path = tmp_path / "closed" / "model"
    doctor, planner = ["-m", "volta_doctor", "model", path], ["-c", MAIN, "plan", path, *GPU]
    for words in (doctor, planner):
        command = [*user, sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == f"Error: {path}: permission denied\n"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv makes an ordinary user")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_file_that_may_not_be_read_is_not_called_damaged(llama, tmp_path):
    path = llama()
    user = _ordinary_user(tmp_path)
    (path / "model.safetensors").chmod(0o600)
    command = [*user, sys.executable, "-m", "volta_doctor", "model", path, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 3
    told = {f["id"]: (f["status"], f["message"]) for f in json.loads(done.stdout)["findings"]}
    assert told["st-header"] == ("unknown", "Cannot be read: Permission denied.")
    assert "fail" not in {status for status, _ in told.values()}


def _ordinary_user(directory):
    """The words that run a command as nobody, who may now go into the directory."""
    for path in (*reversed(directory.parents), directory):
        if not path.stat().st_mode & 1:
            path.chmod(path.stat().st_mode | 1)
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def test_thousands_of_tensors_with_one_fault_are_one_finding(llama, judged):
    extra = {f"model.extra.{n}.weight_outliers": ("F16", (1, 1)) for n in range(2, 3000)}
    report = judged(llama(tensors=extra), *GPU)
    assert len(report["findings"]) < 100
    assert max(f["count"] or 0 for f in report["findings"]) >= 2998
    assert all(len(f["message"]) < 2000 for f in report["findings"])


def test_a_pointer_in_place_of_a_shard_is_one_fault(llama, model, judged):
    path = llama(shards=3)
    shard = path / "model-00002-of-00003.safetensors"
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4000000\n"
    shard.write_text(text)
    roots = [
        finding
        for finding in judged(path, *GPU)["findings"]
        if finding["status"] in ("fail", "unknown") and not finding["folded_under"]
    ]
    assert [(finding["id"], finding["status"]) for finding in roots] == [("lfs-pointer", "fail")]


def test_it_starts_at_once_and_needs_no_torch():
    code = (
        "import sys; from volta_doctor.cli import cli;"
        "cli(['model', '--help'], standalone_mode=False);"
        "heavy = {'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begin < 2  # a loaded machine; alone it is 0.1 s


def test_judging_needs_neither_torch_nor_numpy(llama):
    code = (
        "import sys; from volta_doctor.cli import cli\n"
        f"try: cli(['model', {str(llama())!r}, '--gpu', 'v100-sxm2-16gb'], standalone_mode=False)\n"
        "finally: print({'torch', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"


def test_a_gguf_by_its_path(tmp_path: Path, model):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    done = model(tmp_path / "x.gguf")
    assert done.returncode == 2
    assert "gguf-header" in done.stdout


def test_a_model_in_the_cache_of_the_hub_has_its_name(llama, judged, tmp_path):
    cached = tmp_path / "hub/models--Qwen--Qwen3-0.6B/snapshots"
    cached.mkdir(parents=True)
    path = llama().rename(cached / "c1899de289a04d12100db370d81485cdf75e47ca")
    assert judged(path, *GPU)["model"]["name"] == "Qwen/Qwen3-0.6B"
