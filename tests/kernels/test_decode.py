"""Every code in every position, and every scale byte, against independent tables."""

import pytest
import torch

from volta_runtime import ops

pytestmark = pytest.mark.usefixtures("isa")


def weights_of(packed):
    """W by its products: one column of W for each row of x."""
    return ops.nvfp4_linear(torch.eye(packed.k), packed).T


def test_every_code_in_every_position():
    # Row r holds code (r + k) % 16 in column k, so each of the 16 columns meets each code.
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    k = torch.arange(16)
    nibbles = ((torch.arange(16)[:, None] + k) % 16).to(torch.uint8)
    codes = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    one = torch.tensor([1.0]).to(torch.float8_e4m3fn).expand(16, 1).contiguous()
    packed = ops.nvfp4_pack(codes, one, torch.ones(16))

    expected = torch.tensor(table, dtype=torch.float32)[nibbles.long()]
    assert torch.equal(weights_of(packed), expected)


def test_every_scale_byte():
    scales = torch.arange(256, dtype=torch.uint8)
    scales = scales[(scales & 0x7F) != 0x7F]  # the two NaN bytes never get into a packed matrix
    codes = torch.full((len(scales), 8), 0x22, dtype=torch.uint8)  # all 1.0
    packed = ops.nvfp4_pack(codes, scales[:, None], torch.ones(len(scales)))
    expected = scales.view(torch.float8_e4m3fn).float()[:, None].expand(-1, 16)
    assert torch.equal(weights_of(packed), expected)


def test_subnormal_scales_survive_flush_to_zero():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        codes = torch.full((1, 8), 0x22, dtype=torch.uint8)
        smallest = torch.full((1, 1), 1, dtype=torch.uint8)
        packed = ops.nvfp4_pack(codes, smallest, torch.ones(1))
        assert (weights_of(packed) == 2**-9).all()
    finally:
        torch.set_flush_denormal(False)
