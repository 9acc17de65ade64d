"""Faults of files as findings: which check tells them, of what, with both sides and the file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ggufs import Tensor, gguf

from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import PROBLEMS, Finding, Status
from volta_doctor.preflight.judge import judge
from volta_doctor.preflight.look import look

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 4976698672\n"
OWN = [row for row in model_checks().values() if row.area == "files"]


def examined(path: Path) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in judge(look(path, None, Flags(), None, Facts()), OWN):
        found.setdefault(finding.id, []).append(finding)
    return found


def statuses(path: Path) -> dict[str, set[Status]]:
    return {check: {f.status for f in found} for check, found in examined(path).items()}


def test_a_sound_model_passes_all_and_they_say_what_they_saw(llama: Callable[..., Path]) -> None:
    found = examined(llama(shards=2))
    assert {f.id: f.status for fs in found.values() for f in fs} == {
        row.id: Status.SKIP if row.id == "gguf-header" else Status.OK for row in OWN
    }
    assert found["st-header"][0].message == "21 tensors in 2 files."
    assert found["gguf-header"][0].message == "No file of GGUF: the weights are in safetensors."
    assert found["config-json"][0].message == "config.json."


def test_a_gguf_is_judged_as_one(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": Tensor(0, (8, 4), 128)}
    (tmp_path / "m.gguf").write_bytes(gguf({"general.architecture": "llama"}, tensors))
    found = statuses(tmp_path / "m.gguf")
    skipped = {check for check, held in found.items() if held == {Status.SKIP}}
    assert skipped == {"st-header", "st-index", "config-json"}
    assert found["gguf-header"] == {Status.OK}


# What is done to a sound model in two shards: the check, the level, what it is told of, and a part
# of the message.
Case = tuple[Callable[[Path], Any], tuple[str, Status, str, str]]
CASES: dict[str, Case] = {
    "truncated": (
        lambda path: os.truncate(path / SECOND, (path / SECOND).stat().st_size - 8),
        ("st-header", Status.FAIL, SECOND, "truncated: the data of "),
    ),
    "no header": (
        lambda path: (path / SECOND).write_bytes(b"\xff" * 64),
        ("st-header", Status.FAIL, SECOND, "its first 8 bytes tell a longer header"),
    ),
    "missing": (
        lambda path: (path / SECOND).unlink(),
        ("st-index", Status.FAIL, INDEX, "1 of 2 shards that it names are missing"),
    ),
    "pointer": (
        lambda path: (path / SECOND).write_text(POINTER),
        ("lfs-pointer", Status.FAIL, SECOND, "to a file of 4,976,698,672 bytes"),
    ),
    "pipe": (
        lambda path: ((path / SECOND).unlink(), os.mkfifo(path / SECOND)),
        ("st-header", Status.FAIL, SECOND, "Cannot be read: it is not a file"),
    ),
    "config": (
        lambda path: (path / "config.json").write_text("{"),
        ("config-json", Status.FAIL, "config.json", "Not sound JSON"),
    ),
    "pickle beside": (
        lambda path: (path / "pytorch_model.bin").touch(),
        ("pickle-weights", Status.INFO, "model", "are not used: pytorch_model.bin"),
    ),
    "stale shard": (
        lambda path: (path / "model-00001-of-00009.safetensors").touch(),
        ("shard-mixed-revisions", Status.WARN, "model", "numbered of 2 and of 9"),
    ),
}


@pytest.mark.parametrize(("change", "expected"), CASES.values(), ids=CASES)
def test_a_fault_is_a_finding(
    llama: Callable[..., Path], change: Callable[[Path], Any], expected: tuple[Any, ...]
) -> None:
    path = llama(shards=2)
    change(path)
    check, status, subject, message = expected
    (told,) = [f for f in examined(path)[check] if f.status in PROBLEMS]
    assert (told.status, told.subject) == (status, subject)
    assert message in told.message
    assert told.remedy.fix
    assert all(str(path) in seen.source for seen in told.evidence)


def test_both_sides_are_told_of_a_tensor(llama: Callable[..., Path]) -> None:
    path = llama(shards=2)
    index = path / INDEX
    index.write_text(
        index.read_text().replace(
            f'"model.norm.weight": "{SECOND}"', f'"model.norm.weight": "{FIRST}"'
        )
    )
    (told,) = [f for f in examined(path)["st-index"] if f.status is Status.FAIL]
    assert told.subject == "model.norm.weight"
    assert [(seen.source, seen.text) for seen in told.evidence] == [
        (str(path / FIRST), f"expected: {FIRST}, found: {SECOND}")
    ]


def test_pointers_alone_are_never_ok(llama: Callable[..., Path]) -> None:
    """What could not be looked at is unknown, and why stands above it."""
    path = llama()
    (path / "model.safetensors").write_text(POINTER)
    found = examined(path)
    assert {f.status for f in found["lfs-pointer"]} == {Status.FAIL}
    (header,) = found["st-header"]
    assert (header.status, header.folded_under) == (Status.UNKNOWN, "lfs-pointer")


def test_pickled_weights_alone(llama: Callable[..., Path]) -> None:
    path = llama()
    (path / "model.safetensors").rename(path / "model.pt")
    found = statuses(path)
    assert found["pickle-weights"] == {Status.FAIL}  # no pickle either
    assert found["st-header"] == found["gguf-header"] == {Status.SKIP}


def test_before_the_download_the_missing_shards_are_named(llama: Callable[..., Path]) -> None:
    path = llama(shards=2)
    for shard in (FIRST, SECOND):
        (path / shard).unlink()
    (told,) = examined(path)["st-index"]
    assert f"2 of 2 shards that it names are missing: {FIRST}, {SECOND}" in told.message
    assert told.status is Status.UNKNOWN
    assert statuses(path)["st-header"] == {Status.SKIP}


def test_names_with_control_codes_are_told_without_them(llama: Callable[..., Path]) -> None:
    found = examined(llama(tensors={"model.\x1b[2Jx.weight": ("F16", (64,))}))
    (told,) = found["st-header"]
    assert told.status is Status.FAIL
    assert "\x1b" not in told.subject + told.message + str(told.evidence)
