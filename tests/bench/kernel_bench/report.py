"""What was measured, for programs (JSON), readers (Markdown) and the eye (SVG)."""

import datetime
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from volta_runtime import ops

from .measure import Limits, Row
from .plot import svg
from .shapes import MODELS

SCHEMA = "volta-kernel-bench/1"
_ROOT = Path(__file__).resolve().parents[3]
_DIGITS = 5
_PLOTTED_ROWS = (1, 8, 32)
_SMI = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
)


def _said(*command: str) -> str | None:
    """What a program answers, None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def gpu() -> dict[str, Any] | None:
    """The present CUDA device, its driver and its clocks, as far as they can be read."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties()
    told = {
        "name": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }
    query = f"--query-gpu={','.join(_SMI)}"
    line = _said("nvidia-smi", f"--id=GPU-{properties.uuid}", query, "--format=csv,noheader")
    return told | (dict(zip(_SMI, line.split(", "), strict=False)) if line else {})


def result(
    rows: Sequence[Row], limits: Mapping[str, Limits], errors: Sequence[str], arguments: str
) -> dict[str, Any]:
    """All that is recorded; limits by device."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "schema": SCHEMA,
        "date": now.isoformat(timespec="seconds"),
        "arguments": arguments,
        "revision": _said("git", "describe", "--always", "--dirty"),
        "gpu": gpu(),
        "cpu": {"machine": platform.machine(), "threads": torch.get_num_threads()},
        "kernels": ops.kernels_info(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "limits": {
            device: {"copy_gb_s": of.copy / 1e9, "matmul_tflop_s": of.matmul / 1e12,
                     "floor_us": of.floor_us}
            for device, of in limits.items()
        },
        "models": {model.name: model.source for model, _ in MODELS},
        "errors": list(errors),
        "rows": [
            {
                key: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
                for key, value in row.figures(limits[row.device]).items()
            }
            for row in rows
        ],
    }  # fmt: skip


def about(told: Mapping[str, Any]) -> str:
    """Sentences on where and against what it was measured."""
    card = told["gpu"]
    lines = [
        f"{told['date']}, revision {told['revision']}, torch {told['torch']}, kernels for "
        f"{', '.join(told['kernels']['archs']) or 'the CPU'} ({told['kernels']['build']}).",
    ]
    if card:
        read = ", ".join(f"{key} {card[key]}" for key in _SMI if key in card)
        lines.append(f"{card['name']} ({card['capability']}){': ' if read else ''}{read}.")
    lines += [
        f"{device}: copy {of['copy_gb_s']:.0f} GB/s, matmul {of['matmul_tflop_s']:.3g} TFLOP/s, "
        f"a kernel with nothing to do {of['floor_us']:.2f} us."
        for device, of in told["limits"].items()
    ]
    return "\n".join(lines + [f"Failed: {error}" for error in told["errors"]])


def markdown(told: Mapping[str, Any]) -> str:
    """A table a kernel: a line each shape and format, a column each number of rows."""
    parts = [
        "# Kernels\n", about(told) + "\n",
        "Microseconds, and the fraction of the device's limit: the larger of bytes against copying "
        "and FLOP against torch's product; a CPU's caches deliver more than copying does. "
        "In columns: rows of the input.\n",
    ]  # fmt: skip

    def kernel(row: Mapping[str, Any]) -> tuple[str, str]:
        return row["device"], row["kernel"]

    parts.append(
        "\n".join(f"- {model}: {source}" for model, source in told["models"].items()) + "\n"
    )
    for (device, name), group in groupby(sorted(told["rows"], key=kernel), kernel):
        parts.append(f"## {name} ({device})\n\n{_table(list(group))}\n")
    return "\n".join(parts)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = sorted({row["m"] for row in rows})
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for row in rows:
        key = tuple(row[field] for field in ("model", "name", "shape", "format"))
        compared = f", torch {row['torch_us']:.1f}" if row["torch_us"] else ""
        lines.setdefault(key, {})[row["m"]] = f"{row['us']:.1f} ({row['of_limit']:.0%}{compared})"
    head = ["model", "name", "shape", "format", *(str(m) for m in columns)]
    cells = [head, ["---"] * 4 + ["---:"] * len(columns)]
    cells += [[*key, *(by_m.get(m, "") for m in columns)] for key, by_m in lines.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def plot(told: Mapping[str, Any]) -> str | None:
    """Fraction of copy bandwidth over the size of the matrix; None where no curve was measured."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in told["rows"]:
        if row["kernel"] == "linear" and row["model"] == "curve" and row["m"] in _PLOTTED_ROWS:
            series = panels.setdefault(f"M = {row['m']}", {})
            n = int(row["shape"].partition("x")[0])
            series.setdefault(row["format"], []).append((n, row["of_copy"]))
    return svg(panels, "N, at K = 4096", "of copy bandwidth") if panels else None


def write(told: Mapping[str, Any], directory: Path, part: str = "") -> list[Path]:
    """Record it as kernels-GPU-DATE with .json, .md and, with a curve, .svg.

    part: what the names end in where not all was measured, so that it does not replace all.
    """
    where = told["gpu"]["name"] if told["gpu"] else "cpu"
    slug = "-".join(where.lower().removeprefix("nvidia ").split())
    stem = directory / f"kernels-{slug}-{told['date'][:10]}{part}"
    drawn = plot(told)
    rows = ",\n".join(json.dumps(row) for row in told["rows"])
    head = json.dumps({key: value for key, value in told.items() if key != "rows"}, indent=2)
    texts = {
        # A line a row: a tenth of the lines, and differences that can be read.
        ".json": f'{head.removesuffix("}").rstrip()},\n  "rows": [\n{rows}\n]}}\n',
        ".md": markdown(told),
    } | ({".svg": drawn} if drawn else {})
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, text in texts.items():
        file = stem.with_name(stem.name + suffix)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written
