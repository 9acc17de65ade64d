"""Checkpoints of public layouts, sound and broken, each with what a reader must be told of it.

`root` is what must be said (`fail st-header`; `|` parts ids that say the same, `any` is fail or
warn, `told` also unknown) and not folded under another finding. `names` and `says` are words that
these findings must hold: the tensor or file, and both sides of a contradiction; `|` parts spellings
and `size:FILE` and `whole:FILE` are the bytes that a file has, and had before it was cut. A `sound`
row has no fail at all. `count` is how many findings the root is told in, and of `quiet` ids there
is none but ok or skip that is not folded.
"""

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from volta_doctor.cli import cli

HERE = Path(__file__).parent
LEVELS = {"any": ("fail", "warn"), "told": ("fail", "warn", "unknown")}
FINE = ("ok", "skip")
LIMIT = 10  # seconds for any checkpoint, hostile ones too


def rows() -> list[Any]:
    found = []
    for file in sorted(HERE.glob("*.yaml")):
        held = yaml.safe_load(file.read_text())
        if file.name.startswith("layouts"):
            held = [
                {"id": name, "base": name, "sound": True}
                for name, row in held.items()
                if not row.get("part")
            ]
        for row in held:
            for base in row.get("bases", [row.get("base", "llama")]):
                name = f"{row['id']}-{base}" if "bases" in row else row["id"]
                found.append(pytest.param({**row, "base": base}, id=f"{file.stem}:{name}"))
    return found


def judge(path: Path, arguments: str) -> tuple[dict[str, Any], float]:
    """The report on a checkpoint, and the seconds that it took."""
    start = time.perf_counter()
    result = CliRunner().invoke(
        cli, ["model", str(path), "--format", "json", *shlex.split(arguments)]
    )
    seconds = time.perf_counter() - start
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code in (0, 1, 2, 3), result.output[-500:]
    return json.loads(result.stdout), seconds


def words(findings: list[dict[str, Any]]) -> str:
    text = []
    for each in findings:
        text += [
            each["subject"],
            each["message"] or "",
            *(e["source"] + " " + e["text"] for e in each["evidence"]),
        ]
    return re.sub(r"(?<=\d),(?=\d{3})", "", "\n".join(text))


def holds(text: str, word: Any, sizes: Callable[[str], str]) -> bool:
    return any(sizes(one) in text or one.lower() in text.lower() for one in str(word).split("|"))


def misses(
    row: dict[str, Any], report: dict[str, Any], made: SimpleNamespace
) -> dict[str, list[str]]:
    """What a reader is not told, or told wrongly, by kind."""

    def sizes(word: str) -> str:
        kind, _, file = word.partition(":")
        if kind == "size":
            return str((made.path / file).stat().st_size)
        return str(made.whole[file]) if kind == "whole" else word

    findings = report["findings"]
    found: dict[str, list[str]] = {"root": [], "names": [], "says": [], "false": []}
    meant = []
    for claim in row.get("root", []):
        level, ids = claim.split(" ", 1)
        levels = LEVELS.get(level, (level,))
        hits = [f for f in findings if f["id"] in ids.split("|") and f["status"] in levels]
        hits = [f for f in hits if not f["folded_under"]]
        meant += hits
        if not hits:
            found["root"].append(claim)
    text = words(meant)
    for kind in ("names", "says"):
        found[kind] = [str(word) for word in row.get(kind, []) if not holds(text, word, sizes)]
    if len(meant) != row.get("count", len(meant)):
        found["root"].append(f"{len(meant)} findings, not {row['count']}")
    loud = [f for f in findings if f["id"] in row.get("quiet", ()) and not f["folded_under"]]
    found["quiet"] = [f"{f['id']}: {f['message']}" for f in loud if f["status"] not in FINE]
    if row.get("sound"):
        fails = [f for f in findings if f["status"] == "fail"]
        found["false"] = [f"{f['id']}: {f['message']}" for f in fails]
    return {kind: each for kind, each in found.items() if each}


@pytest.mark.parametrize("row", rows())
def test_a_reader_is_told(
    row: dict[str, Any], make: Callable[[dict[str, Any]], SimpleNamespace]
) -> None:
    made = make(row)
    report, seconds = judge(made.path, row.get("args", ""))
    assert not misses(row, report, made)
    assert seconds < LIMIT


@pytest.mark.parametrize("row", [each for each in rows() if each.id.startswith("hostile")])
def test_nothing_reaches_the_terminal(
    row: dict[str, Any], make: Callable[[dict[str, Any]], SimpleNamespace]
) -> None:
    made = make(row)
    for arguments in ((), ("-v",)):
        output = CliRunner().invoke(cli, ["model", str(made.path), *arguments]).output
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", output)
        assert max(map(len, output.splitlines()), default=0) < 5000
