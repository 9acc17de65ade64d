"""Measure every kernel at the shapes of real models, as a fraction of what the machine can do."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from volta_runtime import ops

from . import attention, experts, matrices, operations, report, shapes, small_model
from .measure import GraphTimer, Limits, Row, WallTimer, limits

RESULTS = Path(__file__).resolve().parents[1] / "results"

Family = Callable[[], Iterator[Row]]


def on_gpu(timer: GraphTimer, quick: bool) -> dict[str, Family]:
    """What is measured on a GPU, by name."""
    models = shapes.QUICK_MODELS if quick else shapes.MODELS
    dense = [*shapes.REFERENCE, *([] if quick else shapes.CURVE)]
    dense += [matrix for model in models for matrix in shapes.matrices(*model)]
    families: dict[str, Family] = {
        "linear": partial(matrices.products, timer, dense),
        "kv_cache_write": partial(attention.write, timer, attention.Sizes()),
        "paged_decode": partial(attention.decode, timer, attention.Sizes()),
        "paged_prefill": partial(attention.prefill, timer, attention.Sizes()),
        "sampling": partial(operations.sampling, timer),
    }
    for model in models:
        families[f"decoder {shapes.label(*model)}"] = partial(operations.decoder, timer, *model)
    if not quick:
        families["routing"] = partial(operations.routing, timer, shapes.QWEN_MOE)
        families["experts"] = partial(experts.products, timer, shapes.QWEN_MOE)
    return families


def why_no_gpu() -> str | None:
    """A sentence, or None where the kernels run on a GPU."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        ops.native.require_kernels(torch.device("cuda", torch.cuda.current_device()))
    except ops.KernelsMissingError as error:
        return str(error)
    return None


def show(row: Row, of: Limits) -> None:
    told = row.figures(of)
    words = f"{row.kernel:16} {row.model:18} {row.name:20} {row.shape:16} {row.format:12}"
    beside = f"  torch {row.torch_us:9.1f} us" if row.torch_us else ""
    print(
        f"{words} m={row.m:<4} {row.us:9.1f} us {told['gb_s']:7.0f} GB/s {told['of_copy']:5.0%} "
        f"{told['tflop_s']:6.3g} TFLOP/s {told['of_matmul']:5.0%}{beside}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="volta bench kernels", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="one model and the reference shapes")
    parser.add_argument("--only", metavar="REGEX", help="parts whose name it matches, as cpu")
    parser.add_argument("--threads", type=int, help="of the CPU kernels; default: torch's choice")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory; default: %(default)s")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    wall = WallTimer()
    of = {"cpu": limits(wall)}
    families: dict[str, Family] = {"cpu": partial(small_model.token, wall)}
    if reason := why_no_gpu():
        print(f"Only the CPU is measured: {reason}.", flush=True)
    else:
        graphs = GraphTimer()
        of["cuda"] = limits(graphs)
        families |= on_gpu(graphs, args.quick)

    rows: list[Row] = []
    errors: list[str] = []
    for name, family in families.items():
        if args.only and not re.search(args.only, name):
            continue
        try:
            for row in family():
                show(row, of[row.device])
                rows.append(row)
        except (RuntimeError, ValueError) as error:  # the others are still worth their time
            errors.append(f"{name}: {error}")
    told = report.result(rows, of, errors, " ".join(sys.argv[1:]))
    print(report.about(told))
    part = "-part" if args.only else "-quick" if args.quick else ""
    for file in report.write(told, args.out, part):
        print(file)
    raise SystemExit(bool(errors))


if __name__ == "__main__":
    main()
