"""Embedding look-ups, of a whole vocabulary and of shards of it."""

import re

import pytest
import torch
from graphs import check_replays

from volta_runtime import ops


@pytest.fixture
def dtype(device):
    return torch.float32 if device.type == "cpu" else torch.float16


def exact(ids, table, dtype, scale=1.0):
    return (table.float()[ids.long()] * scale).to(dtype)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("scale", [1.0, 53.5])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("tokens", "hidden"), [(1, 4096), (5, 1), (3, 7), (900, 64), (17, 2880), (2, 5003)]
)
def test_embedding(device, dtype, index, scale, half, tokens, hidden):
    torch.manual_seed(tokens * 10007 + hidden)
    table = torch.randn(300, hidden).to(device, torch.float16 if half else dtype)
    ids = torch.randint(0, 300, (tokens,), dtype=index)
    ids[[0, -1]] = torch.tensor([299, 0], dtype=index)[: ids[[0, -1]].numel()]
    ids = ids.to(device)
    x = ops.embedding(ids, table, scale)
    assert x.dtype == dtype
    assert torch.equal(x, exact(ids, table, dtype, scale))


@pytest.mark.parametrize("hidden", [24, 25])
def test_every_float16_is_kept(device, dtype, hidden):
    bits = torch.arange(-(2**15), 2**15).short()
    table = bits[: len(bits) // hidden * hidden].view(torch.float16).view(-1, hidden).to(device)
    ids = torch.arange(table.shape[0], device=device)
    x = ops.embedding(ids, table)
    torch.testing.assert_close(x, table.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("hidden", [8, 9])
def test_scaled_numbers_beyond_float16_are_its_ends(device, dtype, hidden):
    table = torch.full((2, hidden), 60000.0).to(device, dtype)
    table[1] *= -1
    x = ops.embedding(torch.tensor([0, 1]).to(device), table, 2.0)
    largest = 65504.0 if dtype == torch.float16 else 120000.0
    assert (x[0] == largest).all() and (x[1] == -largest).all()


@pytest.mark.parametrize("hidden", [32, 33])
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_add_up(device, dtype, hidden, shards):
    torch.manual_seed(hidden)
    table = torch.randn(100, hidden).to(device, dtype)
    ids = torch.randint(0, 100, (41,)).to(device)
    parts, first, total = [], 0, torch.zeros(41, hidden).to(device, dtype)
    for rows in table.tensor_split(shards):
        part = ops.embedding(ids, rows.clone(), 1.5, first)
        outside = (ids < first) | (ids >= first + len(rows))
        assert (part[outside] == 0).all() and (part[~outside] != 0).any()
        parts.append(part)
        total += part
        first += len(rows)
    assert torch.equal(total, exact(ids, table, dtype, 1.5))


@pytest.mark.parametrize("first_row", [0, 50])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_foreign_ids_give_zeros(device, dtype, first_row, index):
    info = torch.iinfo(index)
    ids = [first_row - 1, first_row + 10, -1, info.min, info.max, info.min + first_row]
    table = torch.full((10, 40), float("nan")).to(device, dtype)
    x = ops.embedding(torch.tensor(ids, dtype=index).to(device), table, 1.0, first_row)
    assert (x == 0).all()


def test_shapes(device, dtype):
    table = torch.randn(9, 16).to(device, dtype)
    for shape in [(), (0,), (2, 3)]:
        ids = torch.zeros(shape, dtype=torch.int64, device=device)
        assert ops.embedding(ids, table).shape == (*shape, 16)


IDS, TABLE = torch.zeros(3).long(), torch.zeros(9, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((IDS.short(), TABLE), "ids is torch.int16 [3] on cpu"),
        ((IDS.float(), TABLE), "ids is torch.float32 [3] on cpu"),
        ((IDS.expand(4, 3).T, TABLE), "ids is torch.int64 [3, 4] on cpu, strides [1, 0]"),
        ((IDS.to("meta"), TABLE), "ids is torch.int64 [3] on meta"),
        ((IDS, TABLE.double()), "table is torch.float64 [9, 16]"),
        ((IDS, TABLE.bfloat16()), "table is torch.bfloat16 [9, 16]"),
        ((IDS, TABLE[:, ::2]), "table is torch.float32 [9, 8] on cpu, strides [16, 2]"),
        ((IDS, TABLE[0]), "table has shape [16], needs [rows, hidden]"),
        ((IDS, TABLE[:0]), "table has shape [0, 16], needs [rows, hidden]"),
        ((IDS, TABLE, 1.0, -1), "first_row is -1, needs 0 or more"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.embedding(*arguments)


def test_the_kernel_checks_arguments_itself():
    kernel = ops.native.kernels.embedding_cpu
    with pytest.raises(ValueError, match="does not take these sizes"):
        kernel(0, 0, 0, 1, 9, 0, 0, 8, 4, 1.0, 1)
    for widths in ((2, 4), (8, 1)):
        with pytest.raises(ValueError, match="no such weight format or kernel variant"):
            kernel(0, 0, 0, 1, 9, 8, 0, *widths, 1.0, 1)


def test_opcheck(device, dtype):
    table = torch.randn(9, 16).to(device, torch.float16)
    ids = torch.tensor([3, 8, 20]).to(device)
    op = torch.ops.volta.embedding.default
    torch.library.opcheck(op, (ids, table), {"scale": 2.0, "first_row": 1})


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [4096, 99])
@pytest.mark.parametrize("tokens", [1, 300])
def test_graph_replays(cuda, tokens, hidden):
    table = torch.randn(1000, hidden, device=cuda).half()
    ids = torch.empty(tokens, device=cuda, dtype=torch.int64)

    def change(i):
        torch.manual_seed(i)
        ids.random_(0, 1200)

    check_replays(lambda: (ops.embedding(ids, table, 2.0, 100),), change)
