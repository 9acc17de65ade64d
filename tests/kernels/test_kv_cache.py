"""Writing, copying and moving paged KV caches, against plain indexing in torch."""

import re

import pytest
import torch

from volta_runtime import ops
from volta_runtime.ops.native import ACTIVATION

DTYPES = [torch.float16, torch.float8_e5m2, torch.int8, torch.float32]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request, device):
    if request.param == torch.float32 and ACTIVATION[device.type] != torch.float32:
        pytest.skip("float32 caches are for the CPU")
    return request.param


def poisoned(shape, dtype, device):
    """A cache that holds NaN, or the INT8 that stands out."""
    if dtype == torch.int8:
        return torch.full(shape, -77, dtype=dtype, device=device)
    return torch.full(shape, torch.nan, device=device).to(dtype)


def scales(dtype, heads, device):
    if dtype != torch.int8:
        return None, None
    return tuple((torch.rand(heads) * 0.05 + 0.01).to(device) for _ in range(2))


def nearest_code(x, dtype, scale):
    """x in the cache's dtype, finite numbers held to its range."""
    if dtype == torch.int8:
        return (x.float() / scale[:, None]).round().clamp(-128, 127).to(dtype)
    end = torch.finfo(dtype).max
    held = torch.where(x.isinf(), x.float(), x.float().clamp(-end, end))
    return held.to(dtype)


def same(a, b):
    """Bit for bit, but any NaN is as good as any other."""
    if a.dtype == torch.int8:
        return torch.equal(a, b)
    return torch.equal(a.float().nan_to_num(12345), b.float().nan_to_num(12345))


@pytest.mark.parametrize(
    ("heads", "size", "dim"), [(1, 16, 64), (4, 48, 128), (3, 16, 80), (8, 32, 256)]
)
def test_write_stores_the_nearest_codes_and_nothing_else(device, dtype, heads, size, dim):
    torch.manual_seed(heads * dim)
    blocks, tokens = 7, 45
    activation = ACTIVATION[device.type]
    k, v = (torch.randn(2, tokens, heads, dim) * 3).to(device, activation)
    slots = torch.randperm(blocks * size)[:tokens].to(device)
    slots[5::9] = -1
    shape = (blocks, heads, size, dim)
    caches = [poisoned(shape, dtype, device) for _ in range(2)]
    k_scale, v_scale = scales(dtype, heads, device)
    assert ops.kv_cache_write(k, v, *caches, slots, k_scale, v_scale) is None

    for x, cache, scale in zip((k, v), caches, (k_scale, v_scale), strict=True):
        expected = poisoned(shape, dtype, device)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                code = nearest_code(x[token], dtype, scale)
                expected[slot // size, :, slot % size] = code
        assert same(cache, expected)


def test_write_takes_extremes(device, dtype):
    extremes = [0, -0.0, 65504, -65504, 6e-8, -6e-8, 6.1e-5, 57344, 61440, 1e-3, 1, -1]
    extremes += [torch.inf, -torch.inf] if dtype != torch.int8 else [300, -300]
    x = torch.tensor(extremes + [1.125, 1.375] * 9).reshape(1, 1, 32)
    x = x.to(device, ACTIVATION[device.type])
    k_cache, v_cache = (poisoned((1, 1, 16, 32), dtype, device) for _ in range(2))
    k_scale = v_scale = torch.ones(1, device=device) if dtype == torch.int8 else None
    slots = torch.tensor([3], device=device)
    ops.kv_cache_write(x, -x, k_cache, v_cache, slots, k_scale, v_scale)
    assert same(k_cache[0, :, 3], nearest_code(x[0], dtype, k_scale))
    assert same(v_cache[0, :, 3], nearest_code(-x[0], dtype, v_scale))
    if dtype != torch.int8:
        zero = k_cache[0, 0, 3, :2].float()
        assert zero.signbit().tolist() == [False, True]


def test_every_code_survives_reading_and_writing(device, dtype):
    if dtype == torch.float32:
        pytest.skip("too many codes")
    if dtype == torch.float16:
        codes = torch.arange(65536).to(torch.int16).view(torch.float16)
    else:
        codes = torch.arange(256).to(torch.uint8).view(dtype)
    codes = codes[~codes.float().isnan()]
    codes = torch.nn.functional.pad(codes.view(torch.uint8), (0, -codes.nbytes % 128)).view(dtype)
    tokens = codes.reshape(-1, 1, 64 if dtype == torch.float16 else 128)
    scale = torch.tensor([0.037]) if dtype == torch.int8 else None
    # A power of two, so that FP16 holds each code's value.
    scale = None if scale is None else torch.exp2(scale.log2().round())
    values = tokens.float() * (1 if scale is None else scale)
    x = values.to(device, ACTIVATION[device.type])
    n, _, dim = tokens.shape
    blocks = -(-n // 16)
    cache = torch.zeros(blocks, 1, 16, dim, device=device).to(dtype)
    scale = None if scale is None else scale.to(device)
    ops.kv_cache_write(x, x, cache, cache.clone(), torch.arange(n, device=device), scale, scale)
    stored = cache.cpu().reshape(-1, 1, dim)[:n]
    assert torch.equal(stored.view(torch.uint8), tokens.contiguous().view(torch.uint8))


@pytest.mark.parametrize("shape", [(9, 2, 16, 64), (9, 1, 16, 80), (9, 8, 64, 128)])
def test_copy(device, dtype, shape):
    torch.manual_seed(3)
    k_cache, v_cache = (torch.randn(2, *shape) * 30).to(dtype).to(device)
    before = k_cache.clone(), v_cache.clone()
    pairs = torch.tensor([[0, 4], [8, 1], [0, 7], [-1, 3], [2, -1]], device=device)
    ops.kv_cache_copy(k_cache, v_cache, pairs)
    for cache, old in zip((k_cache, v_cache), before, strict=True):
        expected = old.clone()
        for source, destination in ((0, 4), (8, 1), (0, 7)):
            expected[destination] = old[source]
        assert same(cache, expected)


def test_swap_moves_blocks_both_ways(device, dtype):
    torch.manual_seed(4)
    pinned = device.type == "cuda"
    near = (torch.randn(12, 2, 16, 64) * 30).to(dtype).to(device)
    far = poisoned((20, 2, 16, 64), dtype, "cpu")
    far = far.pin_memory() if pinned else far
    out = torch.tensor([[0, 3], [1, 4], [2, 5], [7, 6], [8, 1], [9, 2], [11, 19]])
    ops.kv_cache_swap(near, far, out)
    if pinned:
        torch.cuda.synchronize()
    expected = poisoned((20, 2, 16, 64), dtype, "cpu")
    expected[out[:, 1]] = near.cpu()[out[:, 0]]
    assert same(far, expected)

    back = torch.zeros_like(near)
    ops.kv_cache_swap(far, back, out.flip(1).contiguous())
    back = back.cpu()
    assert same(back[out[:, 0]], near.cpu()[out[:, 0]])
    rest = [i for i in range(12) if i not in out[:, 0].tolist()]
    assert not back[rest].float().any()


def test_nothing_to_do(device, dtype):
    cache = poisoned((2, 2, 16, 64), dtype, device)
    before = cache.clone()
    x = torch.zeros(0, 2, 64, dtype=ACTIVATION[device.type], device=device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    ops.kv_cache_write(x, x, cache, cache.clone(), none, *scales(dtype, 2, device))
    ops.kv_cache_copy(cache, cache.clone(), none.view(0, 2))
    ops.kv_cache_swap(cache, cache.clone(), none.view(0, 2).cpu())
    assert same(cache, before)


WRITE = {
    "k": torch.zeros(3, 2, 64),
    "v": torch.zeros(3, 2, 64),
    "k_cache": torch.zeros(4, 2, 16, 64),
    "v_cache": torch.zeros(4, 2, 16, 64),
    "slots": torch.tensor([0, 1, 63]),
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": torch.zeros(3, 2, 32)}, "k is torch.float32 [3, 2, 32] on cpu"),
        ({"k": torch.zeros(3, 2, 64).half()}, "needs contiguous torch.float32 [3, 2, 64]"),
        ({"v": torch.zeros(2, 2, 64)}, "v is torch.float32 [2, 2, 64] on cpu"),
        ({"v_cache": torch.zeros(4, 2, 32, 64)}, "v_cache is torch.float32 [4, 2, 32, 64]"),
        ({"v_cache": torch.zeros(4, 2, 16, 64).half()}, "v_cache is torch.float16"),
        ({"k_cache": torch.zeros(4, 2, 64)}, "k_cache has shape [4, 2, 64]"),
        ({"k_cache": torch.zeros(4, 2, 24, 64)}, "block_size a multiple of 16"),
        ({"k_cache": torch.zeros(4, 2, 16, 64).double()}, "k_cache is torch.float64 on cpu"),
        ({"k_cache": torch.zeros(4, 2, 16, 128)[..., ::2]}, "strides [4096, 2048, 128, 2]"),
        ({"slots": torch.tensor([0, 1, 64])}, "slots holds 0 to 64, needs -1 to 63"),
        ({"slots": torch.tensor([0, -2, 5])}, "slots holds -2 to 5, needs -1 to 63"),
        ({"slots": torch.tensor([0, 1])}, "slots is torch.int64 [2]"),
        ({"slots": torch.tensor([0, 1, 2]).int()}, "slots is torch.int32 [3]"),
        ({"k_scale": torch.ones(2)}, "k_scale is given for a cache of torch.float32"),
    ],
)
def test_write_refuses(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.kv_cache_write(**{**WRITE, **wrong})


def test_int8_needs_scales():
    codes = {name: WRITE[name].to(torch.int8) for name in ("k_cache", "v_cache")}
    with pytest.raises(ValueError, match=r"k_scale is missing for a cache of torch\.int8"):
        ops.kv_cache_write(**{**WRITE, **codes})
    with pytest.raises(ValueError, match=re.escape("v_scale is torch.float32 [3] on cpu")):
        ops.kv_cache_write(**{**WRITE, **codes}, k_scale=torch.ones(2), v_scale=torch.ones(3))


def test_copy_and_swap_refuse():
    cache, pair = torch.zeros(4, 2, 16, 64), torch.tensor([[0, 1]])
    for arguments, message in [
        ((cache, cache[:3], pair), "v_cache is torch.float32 [3, 2, 16, 64]"),
        ((cache, cache.half(), pair), "v_cache is torch.float16"),
        ((cache, cache, pair.int()), "pairs is torch.int32 [1, 2]"),
        ((cache, cache, pair[0]), "pairs is torch.int64 [2]"),
        ((cache, cache, torch.tensor([[0, 4]])), "pairs holds 0 to 4, needs -1 to 3"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            ops.kv_cache_copy(*arguments)
    for arguments, message in [
        ((cache, cache[:, :1].contiguous(), pair), "destination is torch.float32 [4, 1, 16, 64]"),
        ((cache, cache.half(), pair), "source is torch.float32 [4, 2, 16, 64]"),
        ((cache, cache, torch.tensor([[4, 0]])), "(source) holds 4 to 4, needs 0 to 3"),
        ((cache, cache, torch.tensor([[0, -1]])), "(destination) holds -1 to -1, needs 0 to 3"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            ops.kv_cache_swap(*arguments)


@pytest.mark.gpu
def test_cuda_refuses(cuda):
    host = torch.zeros(4, 2, 16, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="is not pinned"):
        ops.kv_cache_swap(host.to(cuda), host, torch.tensor([[0, 1]]))
    cache, x = torch.zeros(1, 2, 16, 40, device=cuda).half(), torch.zeros(1, 2, 40, device=cuda)
    with pytest.raises(ValueError, match="head_dim is 40, needs a multiple of 16 on CUDA"):
        slots = torch.zeros(1, dtype=torch.int64, device=cuda)
        ops.kv_cache_write(x.half(), x.half(), cache, cache.clone(), slots)
    with pytest.raises(ValueError, match=r"k_cache is torch\.float32 on cuda"):
        ops.kv_cache_write(x, x, cache.float(), cache.float(), slots)


def test_opcheck():
    registered = torch.ops.volta
    write = tuple(t.clone() for t in WRITE.values())
    torch.library.opcheck(registered.kv_cache_write.default, write)
    cache, pair = torch.zeros(4, 2, 16, 64), torch.tensor([[0, 1]])
    torch.library.opcheck(registered.kv_cache_copy.default, (cache, cache.clone(), pair))
    torch.library.opcheck(registered.kv_cache_swap.default, (cache, cache.clone(), pair))


@pytest.mark.gpu
def test_graph(cuda):
    torch.manual_seed(5)
    shape = (32, 4, 16, 128)
    caches = [torch.zeros(shape, dtype=torch.float16, device=cuda) for _ in range(2)]
    eager = [cache.clone() for cache in caches]
    k, v = torch.randn(2, 24, 4, 128, dtype=torch.float16, device=cuda)
    slots = torch.full((24,), -1, device=cuda)
    pairs = torch.full((5, 2), -1, device=cuda)
    ops.kv_cache_write(k, v, *caches, slots)  # loads the kernels; nothing to do
    ops.kv_cache_copy(*caches, pairs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.kv_cache_write(k, v, *caches, slots)
        ops.kv_cache_copy(*caches, pairs)
    for replay in range(1000):
        k.normal_()
        v.normal_()
        slots.copy_(torch.randperm(32 * 16, device=cuda)[:24])
        slots[replay % 24] = -1
        pairs.copy_(torch.randperm(32, device=cuda)[:10].view(5, 2))
        graph.replay()
        ops.kv_cache_write(k, v, *eager, slots)
        ops.kv_cache_copy(*eager, pairs)
        if replay % 50 == 0:
            assert all(torch.equal(a, b) for a, b in zip(caches, eager, strict=True))
