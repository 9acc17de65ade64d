"""Time of a decoder step's small operations on this machine: one token, and a long prefill.

    python tests/bench/decoder_bench.py

GPU: calls captured in one CUDA graph; the prefill's tensors are larger than any L2, and its bytes
read and written are set against a device copy of the same run.
"""

from collections.abc import Callable

import torch
from kernel_bench import copy_rate, device_seconds, seconds, show

from volta_runtime import ops

EPS = 1e-6
HIDDEN, INTERMEDIATE, VOCABULARY = 4096, 14336, 32000
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
TOKENS = {"cuda": (1, 16384), "cpu": (1, 64)}
CALLS = 20  # in a graph

Case = tuple[str, int, Callable[[], object], int]  # name, width, call, bytes read and written


def cases(tokens: int, device: str) -> list[Case]:
    dtype = ops.native.ACTIVATION[device]

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    x, residual, weight = random(tokens, HIDDEN), random(tokens, HIDDEN), random(HIDDEN)
    wide = random(tokens, HIDDEN, dtype=torch.float32)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    qkv, head = random(tokens, width), random(HEAD_DIM)
    rotated = 2 * qkv[:, : (HEADS + KV_HEADS) * HEAD_DIM].numel() * qkv.element_size()
    table = ops.rope_cache(HEAD_DIM, max(tokens, 2), 1e4, device=device)
    positions = torch.arange(tokens, device=device)
    gate_up = random(tokens, 2 * INTERMEDIATE)
    words = random(VOCABULARY, HIDDEN)
    ids = torch.randint(0, VOCABULARY, (tokens,), device=device)
    sizes = (HEADS, KV_HEADS, HEAD_DIM, EPS)
    return [
        ("norm", HIDDEN, lambda: ops.rms_norm(x, weight, EPS), 2 * x.nbytes),
        ("+ resid.", HIDDEN, lambda: ops.rms_norm(x, weight, EPS, residual), 4 * x.nbytes),
        (
            "+ fp32",
            HIDDEN,
            lambda: ops.rms_norm(x, weight, EPS, wide),
            2 * x.nbytes + 2 * wide.nbytes,
        ),
        (
            "rope",
            width,
            lambda: ops.qk_norm_rope(qkv, None, None, table, positions, *sizes),
            rotated,
        ),
        (
            "qk norm",
            width,
            lambda: ops.qk_norm_rope(qkv, head, head, table, positions, *sizes),
            rotated,
        ),
        *(
            (
                kind,
                INTERMEDIATE,
                lambda kind=kind: ops.gated_activation(gate_up, kind),
                gate_up.nbytes * 3 // 2,
            )
            for kind in ops.GATED_KINDS
        ),
        ("embed", HIDDEN, lambda: ops.embedding(ids, words), 2 * x.nbytes),
    ]


def main() -> None:
    device = "cuda" if torch.cuda.is_available() and ops.kernels_info()["cuda"] else "cpu"
    of = copy_rate() if device == "cuda" else 0
    print(f"{device}, copy {of / 1e9:.0f} GB/s" if of else device)
    for tokens in TOKENS[device]:
        for name, width, call, size in cases(tokens, device):

            def calls(call: Callable[[], object] = call) -> None:
                for _ in range(CALLS):
                    call()

            took = device_seconds(calls, CALLS) if of else seconds(call)
            show(name, tokens, (tokens, width), took, size, of if tokens > 1 else 0)


if __name__ == "__main__":
    main()
