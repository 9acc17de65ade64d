"""The compiled kernels over raw addresses, as csrc/bindings.cpp defines them.

Every function raises ValueError for sizes it does not take and RuntimeError for a CUDA error.
`isa` is 0 (portable) or 1 (AVX2), at most `cpu_isa`, the best this machine has.
"""

compiler: str
cpu_isa: int
cuda_archs: tuple[str, ...]

def nvfp4_linear_cpu(
    x: int,
    codes: int,
    scales: int,
    row_scale: int,
    y: int,
    m: int,
    n: int,
    k: int,
    threads: int,
    isa: int,
) -> None: ...
def nvfp4_dequantize_cpu(
    codes: int, scales: int, row_scale: int, w: int, n: int, k: int, threads: int
) -> None: ...
def half_linear_cpu(
    x: int, w: int, y: int, m: int, n: int, k: int, threads: int, isa: int
) -> None: ...

# Only where cuda_archs is not empty:
def nvfp4_gemv_cuda(
    x: int,
    codes: int,
    scales: int,
    row_scale: int,
    y: int,
    m: int,
    n: int,
    k: int,
    stream: int,
) -> None: ...
def nvfp4_dequantize_cuda(
    codes: int, scales: int, row_scale: int, w: int, n: int, k: int, stream: int
) -> None: ...
