"""Time of the kernels on this machine: each shape of a model, a token's sum, and GPU shapes.

    python tests/bench/kernel_bench.py [--threads N]

CPU: the matrices of SmolLM2-135M in the order of a token, so that caches are as warm as in use.
GPU: buffers rotated beyond the L2 cache, in one replayed CUDA graph; bytes are those of the packed
weights, set against the bandwidth of a device copy measured in the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from volta_runtime import ops

LAYERS = 30
SMOLLM2_135M = {"qkv": (960, 576), "o": (576, 576), "gate+up": (3072, 576), "down": (576, 1536)}
HEAD = (49152, 576)
GPU_SHAPES = [(4096, 4096), (4096, 14336), (14336, 4096), (28672, 4096), (152064, 4096)]
ROTATED_BYTES = 512 << 20  # several times any L2


def random_weight(n: int, k: int, device: str) -> ops.NVFP4Weight:
    return ops.nvfp4_pack(
        torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device),
        torch.randint(0, 126, (n, k // 16), dtype=torch.uint8, device=device),
        torch.full((n,), 1e-4, device=device),
    )


def packed_bytes(w: ops.NVFP4Weight) -> int:
    return w.codes.nbytes + w.scales.nbytes + w.row_scale.nbytes


def seconds(call: Callable[[], object], repeats: int = 20) -> float:
    """Median wall time of a call."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def bench_cpu() -> None:
    print(f"CPU: {ops.kernels_info()['cpu']}, {torch.get_num_threads()} threads, SmolLM2-135M")
    layers = [{s: random_weight(*s, "cpu") for s in SMOLLM2_135M.values()} for _ in range(LAYERS)]
    head = torch.randn(HEAD).half()
    for m in (1, 2, 4, 8, 64):
        x = {k: torch.randn(m, k) for k in (576, 1536)}
        total = 0.0
        for name, shape in SMOLLM2_135M.items():
            weights = [layer[shape] for layer in layers]
            took = seconds(lambda w=weights, x=x[shape[1]]: [ops.nvfp4_linear(x, i) for i in w])
            total += took
            show(name, m, shape, took / LAYERS, packed_bytes(weights[0]))
        took = seconds(lambda x=x[HEAD[1]]: ops.half_linear(x, head))
        show("head fp16", m, HEAD, took, head.nbytes)
        print(f"  m={m}: {(total + took) * 1e3:.2f} ms for {LAYERS} layers and the head")


def show(name: str, m: int, shape: tuple[int, int], took: float, size: int, of: float = 0) -> None:
    rate = size / took
    part = f" {rate / of:5.0%} of copy" if of else ""
    print(f"  m={m:<3} {name:9} {shape!s:15} {took * 1e6:8.1f} us {rate / 1e9:7.1f} GB/s{part}")


def device_seconds(call: Callable[[], object], calls: int) -> float:
    """Time per call of `calls` captured calls, the best of five replays."""
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(6):  # the first one warms up
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return min(times[1:])


def copy_rate() -> float:
    """Bytes read and written per second by a kernel that copies.

    Not by a memcpy: in a captured graph that may run on a copy engine, which is slower.
    """
    source = torch.zeros(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / device_seconds(lambda: torch.neg(source, out=target), 1)


def bench_gpu() -> None:
    of = copy_rate()
    print(f"GPU: {torch.cuda.get_device_name()}, copy {of / 1e9:.0f} GB/s")
    for shape in GPU_SHAPES:
        bench_gpu_shape(shape, of)


def bench_gpu_shape(shape: tuple[int, int], of: float) -> None:
    weights = [random_weight(*shape, "cuda")]
    size = packed_bytes(weights[0])
    weights += [random_weight(*shape, "cuda") for _ in range(ROTATED_BYTES // size)]

    def all_linear(x: Tensor) -> None:
        for w in weights:
            ops.nvfp4_linear(x, w)

    def all_dequantize() -> None:
        for w in weights:
            ops.nvfp4_dequantize(w, torch.float16)

    for m in (1, 2, 4, 8, 512):
        x = torch.randn(m, shape[1], device="cuda", dtype=torch.float16)
        took = device_seconds(partial(all_linear, x), len(weights))
        show("nvfp4", m, shape, took, size, of)
    took = device_seconds(all_dequantize, len(weights))
    show("to fp16", 0, shape, took, size + 2 * shape[0] * shape[1], of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="of the CPU kernels; default: torch's choice")
    threads = parser.parse_args().threads
    if threads:
        torch.set_num_threads(threads)
    bench_cpu()
    if torch.cuda.is_available() and ops.kernels_info()["cuda"]:
        bench_gpu()
    else:
        print("GPU: no CUDA device, or kernels built without CUDA")


if __name__ == "__main__":
    main()
