"""Sorting assignments by expert and cutting them into tiles, against torch's stable sort."""

import re

import pytest
import torch

from volta_runtime import ops
from volta_runtime.ops import native


def expected_permute(experts, tile, first, count):
    flat = experts.flatten().long() - first
    key = torch.where((flat >= 0) & (flat < count), flat, count)
    order = key.argsort(stable=True)
    rows = torch.bincount(key, minlength=count + 1)[:count]
    order[int(rows.sum()) :] = -1
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), rows.cumsum(0)))
    tiles = [
        (e, row) for e in range(count) for row in range(int(offsets[e]), int(offsets[e + 1]), tile)
    ]
    return order, offsets, tiles


def check_permute(device, experts, n, tile, first=0, count=None):
    local = n - first if count is None else count
    order, offsets, tiles = expected_permute(experts, tile, first, local)
    out = ops.moe_permute(experts.to(device), n, tile, first_expert=first, local_experts=count)
    assert all(t.dtype == torch.int32 and t.device.type == device.type for t in out)
    ordered, starts, tile_expert, tile_row = (t.cpu() for t in out)
    assert torch.equal(ordered.long(), order)
    assert torch.equal(starts.long(), offsets)
    bound = min(local, experts.numel()) + experts.numel() // tile
    assert tile_expert.shape == tile_row.shape == (bound,)
    unused = [(-1, -1)] * (bound - len(tiles))
    assert list(zip(tile_expert.tolist(), tile_row.tolist(), strict=True)) == tiles + unused
    return len(tiles), bound


def random_experts(tokens, top_k, n):
    """Distinct experts of each token, the first ones often."""
    favour = 1 / (1 + torch.arange(n, dtype=torch.float))
    return torch.multinomial(favour.expand(tokens, n), top_k).int()


@pytest.mark.parametrize("tokens", [*range(10), 512, 513, 4096])
@pytest.mark.parametrize(("n", "top_k", "tile"), [(8, 2, 16), (128, 8, 64), (512, 32, 1)])
def test_permute(device, tokens, n, top_k, tile):
    torch.manual_seed(tokens)
    experts = random_experts(tokens, top_k, n) if tokens else torch.zeros(0, top_k).int()
    check_permute(device, experts, n, tile)
    check_permute(device, experts, n, tile, n // 4, n // 2)
    check_permute(device, experts, n, tile, n - 1)


@pytest.mark.parametrize("n", [1, 2, 31, 33, 100, 511])
@pytest.mark.parametrize("tile", [1, 3, 8, 127, 128])
def test_permute_takes_any_sizes(device, n, tile):
    torch.manual_seed(n)
    for tokens in (7, 4097):
        experts = torch.randint(0, n, (tokens, 1), dtype=torch.int32)
        check_permute(device, experts, n, tile)


@pytest.mark.parametrize("tokens", [5, 3000])
def test_all_tokens_to_one_expert(device, tokens):
    for expert in (0, 77, 127):
        check_permute(device, torch.full((tokens, 2), expert, dtype=torch.int32), 128, 16)


@pytest.mark.parametrize("tokens", [5, 3000])
def test_no_local_assignments(device, tokens):
    torch.manual_seed(tokens)
    experts = random_experts(tokens, 4, 32)
    used, _ = check_permute(device, experts, 128, 16, 32, 32)
    assert used == 0


@pytest.mark.parametrize("tokens", [9, 5000])
def test_ids_outside_of_all_experts_are_skipped(device, tokens):
    torch.manual_seed(tokens)
    some = torch.tensor([-(2**31), -1, 0, 3, 7, 8, 512, 2**31 - 1], dtype=torch.int32)
    check_permute(device, some[torch.randint(0, 8, (tokens, 3))], 8, 16)
    check_permute(device, some[torch.randint(0, 8, (tokens, 3))], 8, 16, 3, 2)


@pytest.mark.parametrize("tile", [1, 2, 16, 128])
def test_the_number_of_tiles_is_enough_in_the_worst_case(device, tile):
    """Every expert has one row more than whole tiles: the most tiles that so many rows can make."""
    for n, whole in ((1, 0), (5, 0), (40, 1), (3, 5)):
        experts = torch.arange(n, dtype=torch.int32).repeat(whole * tile + 1)[:, None]
        used, bound = check_permute(device, experts, n, tile)
        assert used == (experts.numel() + n * (tile - 1)) // tile <= bound


def test_a_hundred_thousand_assignments(device):
    torch.manual_seed(3)
    check_permute(device, random_experts(16384, 8, 128), 128, 64)


@pytest.mark.parametrize("tokens", [3, 700])
def test_permute_writes_all_of_its_memory_and_no_more(device, tokens):
    torch.manual_seed(tokens)
    experts = random_experts(tokens, 8, 24).to(device)
    expected = ops.moe_permute(experts, 24, 16, first_expert=4, local_experts=12)
    sizes = [t.numel() for t in expected]
    poisoned = [torch.full((size + 64,), -7, dtype=torch.int32, device=device) for size in sizes]
    workspace = torch.full((2 * 12 + 64,), -7, dtype=torch.int32, device=device)
    native.launch(
        "moe_permute", device, experts, *poisoned, workspace, tokens * 8, 4, 12, 16, sizes[-1]
    )
    for memory, size, good in zip(poisoned, sizes, expected, strict=True):
        assert torch.equal(memory[:size], good)
        assert (memory[size:] == -7).all()
    assert (workspace[2 * 12 :] == -7).all()


IDS = torch.zeros(4, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("args", "share", "message"),
    [
        ((torch.zeros(4).int(), 8, 16), {}, "experts has shape [4], needs [tokens, top_k]"),
        ((IDS.long(), 8, 16), {}, "experts is torch.int64 [4, 2]"),
        ((IDS.T, 8, 16), {}, "strides [1, 2]"),
        ((IDS, 8, 0), {}, "tile is 0, needs 1 to 128"),
        ((IDS, 8, 129), {}, "tile is 129, needs 1 to 128"),
        ((IDS, 513, 16), {}, "513 local experts from 0 on, of 513: needs"),
        ((IDS, 0, 16), {}, "0 local experts from 0 on, of 0"),
        ((IDS, 8, 16), {"first_expert": 8}, "0 local experts from 8 on, of 8"),
        ((IDS, 8, 16), {"first_expert": -1}, "9 local experts from -1 on, of 8"),
        ((IDS, 8, 16), {"first_expert": 4, "local_experts": 5}, "5 local experts from 4 on, of 8"),
    ],
)
def test_permute_refuses(args, share, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.moe_permute(*args, **share)
