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
def half_linear_cpu(
    x: int, w: int, y: int, m: int, n: int, k: int, threads: int, isa: int
) -> None: ...
