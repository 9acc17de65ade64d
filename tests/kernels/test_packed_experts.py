"""Stacks of packed experts; what their products refuse, and how torch sees them."""

import re
import weakref
from dataclasses import replace

import pytest
import torch
from weights import random_sample

from volta_runtime import ops
from volta_runtime.ops import native, packed
from volta_runtime.ops.expert_linear import PackedExperts, Routes, expert_linear, stack_experts


def weight(n=40, k=64, name="nvfp4", **options):
    s = random_sample(name, n, k, torch.Generator().manual_seed(n + k))
    return packed.pack(name, s.codes, *s.scales, row_scale=s.row_scale, **options)


@pytest.mark.parametrize("row_order", ["plain", "gate_up"])
def test_stacked_matrices_are_themselves(row_order, device):
    parts = [weight(n=70, row_order=row_order) for _ in range(3)]
    stacked = stack_experts(iter(parts), 3).to(device)
    assert isinstance(stacked, PackedExperts)
    assert stacked.device.type == device.type
    assert stacked.nbytes == sum(w.nbytes for w in parts)
    for i, w in enumerate(parts):
        view = stacked.expert(i)
        packed.check_packed(view)
        assert (view.n, view.k, view.row_order) == (w.n, w.k, w.row_order)
        for name in ("data", "row_scale", "half_factor"):
            assert torch.equal(getattr(view, name).cpu(), getattr(w, name))
            start = getattr(stacked, name).untyped_storage().data_ptr()
            assert getattr(view, name).untyped_storage().data_ptr() == start


def test_stacking_asks_for_one_matrix_at_a_time():
    alive = []

    def remembered(w):
        alive.append(weakref.ref(w.data))
        return w

    def matrices():
        for _ in range(5):
            assert all(data() is None for data in alive)
            yield remembered(weight())

    assert stack_experts(matrices(), 5).data.shape == (5, 2, 1, 2304)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (weight(n=41), "expert 1 is nvfp4 [41, 64] in plain order on cpu, those before it are nv"),
        (weight(k=80), "expert 1 is nvfp4 [40, 80]"),
        (weight(name="mxfp4"), "expert 1 is mxfp4 [40, 64]"),
        (weight(row_order="gate_up"), "expert 1 is nvfp4 [40, 64] in gate_up order"),
        (weight(perm=torch.arange(64).int()), "expert 1 has an order of its 64 columns"),
        (replace(weight(), row_scale=torch.zeros(40)), "row_scale is torch.float32 [40]"),
        (None, "there are 1 experts, needs 2"),
    ],
)
def test_stacking_refuses(other, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        stack_experts([weight(), *([] if other is None else [other])], 2)


def test_stacking_refuses_other_numbers():
    with pytest.raises(ValueError, match="more than 1 experts"):
        stack_experts([weight(), weight()], 1)
    with pytest.raises(ValueError, match="there are 0 experts, needs 0, one or more"):
        stack_experts([], 0)


# --- Refusals ----------------------------------------------------------------------------------


def sort(chosen, tile):
    """Of three experts."""
    return Routes(*ops.moe_permute(chosen, 3, tile), tile)


def arguments(row_order="plain"):
    """Of four tokens with two of three experts each."""
    chosen = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2]], dtype=torch.int32)
    return {
        "x": torch.randn(4, 64),
        "experts": stack_experts([weight(row_order=row_order)] * 3, 3),
        "routes": sort(chosen, 2),
        "per_assignment": False,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 80)}, "x has shape [4, 80], needs [tokens, of 8 assignments equally"),
        ({"x": torch.zeros(3, 64)}, "x has shape [3, 64]"),
        ({"x": torch.zeros(9, 64)}, "x has shape [9, 64]"),
        ({"x": torch.zeros(0, 64)}, "x has shape [0, 64]"),
        ({"x": torch.zeros(64)}, "x has shape [64]"),
        ({"per_assignment": True}, "x has shape [4, 64], needs [8 assignments, 64]"),
        ({"x": torch.zeros(4, 64).half()}, "x is torch.float16 [4, 64]"),
        ({"x": torch.zeros(4, 128)[:, ::2]}, "strides [128, 2]"),
        ({"bias": torch.zeros(40)}, "bias is torch.float32 [40]"),
        ({"bias": torch.zeros(3, 40).half()}, "bias is torch.float16 [3, 40]"),
        ({"gated": True}, "gated is True, the experts are in plain order"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        expert_linear(**(arguments() | change))


def test_refuses_both_halves_alone():
    with pytest.raises(ValueError, match="gated is False, the experts are in gate_up order"):
        expert_linear(**arguments("gate_up"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile": 4}, "tile is 4, needs one of 1, 2, 8, 16, 32"),
        ({"tile": 8}, "tile_expert is torch.int32 [7]"),
        ({"tile_row": torch.zeros(6).int()}, "tile_row is torch.int32 [6]"),
        ({"expert_offsets": torch.zeros(3).int()}, "expert_offsets is torch.int32 [3]"),
        ({"expert_offsets": torch.zeros(4)}, "expert_offsets is torch.float32 [4]"),
        ({"sorted_assignments": torch.zeros(8)}, "sorted_assignments is torch.float32 [8]"),
        ({"sorted_assignments": torch.zeros(4, 2).int()}, "sorted_assignments is torch.int32 [4,"),
    ],
)
def test_refuses_other_routes(change, message):
    good = arguments()
    with pytest.raises(ValueError, match=re.escape(message)):
        expert_linear(**(good | {"routes": good["routes"]._replace(**change)}))


def test_refuses_more_tiles_than_a_launch_takes():
    chosen = torch.zeros(65533, 1, dtype=torch.int32)
    routes = sort(chosen, 1)
    good = arguments() | {"x": torch.zeros(65533, 64), "routes": routes}
    with pytest.raises(ValueError, match="65533 assignments to 3 experts are 65536 tiles of 1"):
        expert_linear(**good)


def op_arguments(row_order="plain"):
    given = arguments(row_order)
    w, gated = given["experts"], row_order == "gate_up"
    return [
        given["x"], w.data, w.row_scale, w.half_factor, w.format, w.n, w.row_order,
        *given["routes"], False, torch.randn(3, 40), gated,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (0, torch.zeros(64), "x has shape [64], needs [rows, k]"),
        (1, torch.zeros(2, 1, 2304).byte(), "data has shape [2, 1, 2304], needs [experts,"),
        (1, torch.zeros(3, 1, 1, 2304).byte(), "data is torch.uint8 [3, 1, 1, 2304]"),
        (2, torch.zeros(3, 40), "row_scale is torch.float32 [3, 40]"),
        (3, torch.zeros(2, 64), "half_factor is torch.float32 [2, 64]"),
        (4, "nvfp5", "there is no weight format 'nvfp5'"),
    ],
)
def test_the_operator_checks_the_packed_tensors_too(at, wrong, message):
    given = op_arguments()
    given[at] = wrong
    with pytest.raises(ValueError, match=re.escape(message)):
        torch.ops.volta.expert_linear(*given)


# --- What torch relies on ----------------------------------------------------------------------


@pytest.mark.parametrize("row_order", ["plain", "gate_up"])
def test_opcheck(row_order, device):
    given = op_arguments(row_order)
    half = native.ACTIVATION[device.type]
    moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in given]
    moved[0], moved[-2] = moved[0].to(half), moved[-2].to(half)
    torch.library.opcheck(torch.ops.volta.expert_linear.default, tuple(moved))


def test_compiled_code_calls_the_operator():
    given = arguments()
    x = given.pop("x")
    compiled = torch.compile(
        lambda x: expert_linear(x, **given) * 2, backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(x), expert_linear(x, **given) * 2)


@pytest.mark.gpu
def test_misaligned_memory_is_refused(cuda):
    given = arguments()
    given["experts"] = given["experts"].to(cuda)
    routes = given["routes"]
    given["routes"] = Routes(*(t.to(cuda) for t in routes[:4]), routes.tile)
    given["x"] = torch.zeros(4 * 64 + 1, device=cuda, dtype=torch.float16)[1:].view(4, 64)
    with pytest.raises(ValueError, match=r"x .* address 2 past a multiple of 16"):
        expert_linear(**given)
