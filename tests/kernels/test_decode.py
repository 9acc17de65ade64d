"""Every code in every position, and every scale byte, against independent tables."""

import pytest
import torch

from volta_runtime import ops


def weights_of(packed, native):
    """W by the dequantise kernel, and by the GEMV, one column of W for each row of x."""
    device = packed.codes.device
    columns = torch.eye(packed.k, dtype=native, device=device).split(8)
    products = [ops.nvfp4_linear(x.contiguous(), packed) for x in columns]
    return ops.nvfp4_dequantize(packed, native).cpu(), torch.cat(products).T.cpu()


def test_every_code_in_every_position(device, native):
    # Row r holds code (r + k) % 16 in column k, so each of the 16 columns meets each code.
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    k = torch.arange(16)
    nibbles = ((torch.arange(16)[:, None] + k) % 16).to(torch.uint8)
    codes = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).to(device)
    one = torch.tensor([1.0]).to(torch.float8_e4m3fn).expand(16, 1).contiguous().to(device)
    packed = ops.nvfp4_pack(codes, one, torch.ones(16, device=device))

    expected = torch.tensor(table, dtype=native)[nibbles.long()]
    dequantized, multiplied = weights_of(packed, native)
    assert torch.equal(dequantized, expected)
    assert torch.equal(dequantized.signbit(), expected.signbit())
    assert torch.equal(multiplied, expected)


def test_every_scale_byte(device, native):
    scales = torch.arange(256, dtype=torch.uint8)
    scales = scales[(scales & 0x7F) != 0x7F]  # the two NaN bytes never get into a packed matrix
    codes = torch.full((len(scales), 8), 0x22, dtype=torch.uint8, device=device)  # all 1.0
    packed = ops.nvfp4_pack(
        codes, scales[:, None].to(device), torch.ones(len(scales), device=device)
    )
    expected = scales.view(torch.float8_e4m3fn).to(native)[:, None].expand(-1, 16)
    for actual in weights_of(packed, native):
        assert torch.equal(actual, expected)


def test_subnormal_scales_survive_flush_to_zero(device, native):
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        codes = torch.full((1, 8), 0x22, dtype=torch.uint8, device=device)
        smallest = torch.full((1, 1), 1, dtype=torch.uint8, device=device)
        packed = ops.nvfp4_pack(codes, smallest, torch.ones(1, device=device))
        for actual in weights_of(packed, native):
            assert (actual == 2**-9).all()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(("n", "k"), [(1, 16), (7, 32), (8, 48), (129, 576)])
def test_unpack_is_the_inverse_of_pack(sample, device, n, k):
    made = sample(n, k, device)
    codes, scales = ops.nvfp4_unpack(made.packed)
    assert torch.equal(codes.cpu(), made.codes)
    assert torch.equal(scales.cpu(), made.scales)


@pytest.mark.parametrize(("n", "k"), [(1, 16), (13, 48), (64, 576), (65, 4112)])
def test_dequantize(sample, device, native, n, k):
    made = sample(n, k, device)
    actual = ops.nvfp4_dequantize(made.packed, native).double().cpu()
    rounding = torch.finfo(native).eps
    assert ((actual - made.exact).abs() <= rounding * made.exact.abs() + 2**-25).all()
