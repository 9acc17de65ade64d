"""What the kernels could not survive is refused, with the numbers that matter."""

import re
import subprocess
import sys

import pytest
import torch

from volta_runtime import ops


def pack(n=8, k=32, codes=None, scales=None, row_scale=None):
    return ops.nvfp4_pack(
        torch.zeros(n, k // 2, dtype=torch.uint8) if codes is None else codes,
        torch.zeros(n, k // 16, dtype=torch.uint8) if scales is None else scales,
        torch.ones(n) if row_scale is None else row_scale,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"codes": torch.zeros(8, 12, dtype=torch.uint8)}, "codes has shape [8, 12], needs"),
        ({"codes": torch.zeros(0, 16, dtype=torch.uint8)}, "codes has shape [0, 16], needs"),
        ({"codes": torch.zeros(8, 16)}, "codes is torch.float32 [8, 16] on cpu"),
        ({"codes": torch.zeros(16, 16, dtype=torch.uint8)[::2]}, "codes is torch.uint8 [8, 16]"),
        ({"scales": torch.zeros(8, 1, dtype=torch.uint8)}, "needs contiguous torch.uint8 [8, 2]"),
        ({"scales": torch.zeros(8, 2)}, "block_scales is torch.float32 [8, 2]"),
        ({"row_scale": torch.ones(1)}, "row_scale is torch.float32 [1]"),
        ({"row_scale": torch.ones(8).half()}, "needs contiguous torch.float32 [8]"),
    ],
)
def test_pack_refuses(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pack(**wrong)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_pack_refuses_nan_scales(byte):
    scales = torch.zeros(8, 2, dtype=torch.uint8)
    scales[3, 1] = byte
    with pytest.raises(ValueError, match="1 NaN of 16, the first in row 3, group 1"):
        pack(scales=scales)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 48), "x has shape [2, 48], needs [..., 32] for W [8, 32]"),
        (torch.tensor(1.0), "x has shape [], needs [..., 32]"),
        (torch.zeros(2, 32).half(), "x is torch.float16 [2, 32] on cpu"),
        (torch.zeros(2, 64)[:, ::2], "strides [64, 2]"),
        (torch.zeros(32, 2).T, "strides [1, 2]"),
        (torch.zeros(2, 32, device="meta"), "x is torch.float32 [2, 32] on meta"),
    ],
)
def test_linear_refuses(x, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.nvfp4_linear(x, pack())


def test_the_operator_checks_the_packed_tensors_too():
    w, x = pack(), torch.zeros(2, 32)
    op = torch.ops.volta.nvfp4_linear
    with pytest.raises(ValueError, match=r"codes is torch\.uint8 \[1, 2, 32\]"):
        op(x, w.codes[..., ::2], w.scales, w.row_scale)
    with pytest.raises(ValueError, match=r"scales is torch\.uint8 \[1, 1, 8\]"):
        op(x, w.codes, w.scales[:, :1], w.row_scale)
    with pytest.raises(ValueError, match=r"codes is .* needs contiguous torch\.uint8 \[3, 2, 64\]"):
        op(x, w.codes, w.scales, torch.ones(17))


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.zeros(2, 24), torch.zeros(4, 24).half(), "w has shape [4, 24], needs [N, K]"),
        (torch.zeros(2, 32), torch.zeros(4, 32), "w is torch.float32 [4, 32]"),
        (torch.zeros(2, 48), torch.zeros(4, 32).half(), "x is torch.float32 [2, 48]"),
        (torch.zeros(2, 32).half(), torch.zeros(4, 32).half(), "x is torch.float16 [2, 32]"),
    ],
)
def test_half_linear_refuses(x, w, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.half_linear(x, w)


def test_the_kernels_check_sizes_themselves():
    with pytest.raises(
        ValueError,
        match=r"nvfp4_linear_cpu\(.*, 1, 8, 24, 1, 0\): the kernel does not take these sizes",
    ):
        ops.native.kernels.nvfp4_linear_cpu(0, 0, 0, 0, 0, 1, 8, 24, 1, 0)
    with pytest.raises(ValueError, match="lacks the instruction set"):
        ops.native.kernels.half_linear_cpu(0, 0, 0, 1, 8, 32, 1, 2)


def test_missing_kernels_are_told_at_the_first_call():
    script = """
import sys
sys.modules["volta_runtime._kernels"] = None  # what an installation without them looks like
import torch
from volta_runtime import ops
for call in (ops.kernels_info, lambda: ops.nvfp4_pack(torch.zeros(1, 8), None, None)):
    try:
        call()
    except ops.KernelsMissingError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count("VOLTA_BUILD_KERNELS=1 pip install .") == 2
