"""The example of docs/plan.md: a checkpoint of a real model's shape, and what is planned for it.

python tests/lib/plan_example.py writes today's answer into the page.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / part) for part in ("tests/lib", "doctor", "runtime", "provision")]

from checkpoints import write  # noqa: E402
from models import linear_in, shapes, stored  # noqa: E402

from volta_runtime.checkpoint.architecture import from_config  # noqa: E402

PAGE = REPO / "docs/plan.md"
MAIN = "from volta_provision.cli import main; main()"
COMMAND = "volta-stack plan Qwen2.5-7B-Instruct --gpu v100-sxm2-16gb --count 2"
TOKENIZER = {
    "tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
    "tokenizer_config.json": {"chat_template": "{{ messages }}"},
}
_BLOCK = re.compile(r"(?<=```console\n\$ " + re.escape(COMMAND) + r"\n).*?(?=```\n)", re.DOTALL)


def checkpoint(directory: Path) -> Path:
    """Write Qwen2.5-7B in its published shape, sparse."""
    config = json.loads((REPO / "tests/data/runtime/architectures/qwen2.5-7b.json").read_text())
    names = shapes(from_config(config))
    tensors = stored(names, linear_in("dense"))
    return write(directory, tensors, config, shards=4, files=TOKENIZER)


def answer() -> str:
    """Return what the command prints, 80 columns wide."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint(Path(directory) / "Qwen2.5-7B-Instruct")
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *COMMAND.split()[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=directory,
            env={
                **os.environ,
                "COLUMNS": "80",
                "TERM": "dumb",
                "PYTHONPATH": os.pathsep.join(sys.path[1:4]),
            },
        )
        return done.stdout + done.stderr


def shown() -> str:
    """Return what the page shows."""
    found = _BLOCK.search(PAGE.read_text())
    return found[0] if found else ""


if __name__ == "__main__":
    PAGE.write_text(_BLOCK.sub(lambda _: answer(), PAGE.read_text()))
