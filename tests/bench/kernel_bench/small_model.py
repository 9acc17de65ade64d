"""A small model on the CPU: its matrices in the order of a token, and their sum."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from volta_runtime import ops

from .measure import Row, WallTimer

# SmolLM2-135M, [n, k].
LAYERS = 30
MATRICES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
HEAD = (49152, 576)
ROWS = (1, 2, 4, 8, 64)
_MODEL = "SmolLM2-135M"


def random_nvfp4(n: int, k: int) -> ops.NVFP4Weight:
    return ops.nvfp4_pack(
        torch.randint(0, 256, (n, k // 2), dtype=torch.uint8),
        torch.randint(0, 126, (n, k // 16), dtype=torch.uint8),
        torch.full((n,), 1e-4),
    )


def token(
    timer: WallTimer, layers: int = LAYERS, head: tuple[int, int] = HEAD, ms: Sequence[int] = ROWS
) -> Iterator[Row]:
    """Each matrix of all layers in turn, so that caches are as warm as in use, and a whole step."""
    model = [{name: random_nvfp4(*size) for name, size in MATRICES.items()} for _ in range(layers)]
    words = torch.randn(head).half()
    for m in ms:
        rows = []
        for name, (n, k) in MATRICES.items():
            x = torch.randn(m, k)
            weights = [layer[name] for layer in model]
            first = weights[0]
            took = timer.time([partial(ops.nvfp4_linear, x, w) for w in weights])
            read = first.codes.nbytes + first.scales.nbytes + first.row_scale.nbytes
            rows.append(
                Row(
                    "cpu", "nvfp4_linear", _MODEL, name, f"{n}x{k}", m, "nvfp4",
                    read + 4 * m * (n + k), 2 * m * n * k, took.best, took.median,
                )
            )  # fmt: skip
        n, k = head
        took = timer.time([partial(ops.half_linear, torch.randn(m, k), words)])
        size = words.nbytes + 4 * m * (n + k)
        rows.append(
            Row(
                "cpu", "half_linear", _MODEL, "lm_head", f"{n}x{k}", m, "float16", size,
                2 * m * n * k, took.best, took.median,
            )
        )  # fmt: skip
        yield from rows
        times = [1 if row.kernel == "half_linear" else layers for row in rows]

        def total(field: str, rows: list[Row] = rows, times: list[int] = times) -> float:
            return sum(getattr(row, field) * t for row, t in zip(rows, times, strict=True))

        yield Row(
            "cpu", "all matrices of a step", _MODEL, "", f"{layers} layers", m, "nvfp4",
            int(total("bytes")), int(total("flops")), total("us"), total("median_us"),
        )  # fmt: skip
