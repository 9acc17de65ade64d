"""The NVFP4 quantiser against brute force, and its E4M3 against torch."""

import numpy as np
import pytest
import torch

from volta_runtime.quant import dequantize, nvfp4

SMALLEST = np.float32(1e-45)  # the least denormal


def e4m3(byte):
    return float(torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).float())


FINITE = [e4m3(byte) for byte in range(127)]


def nearest(values, x):
    """Index of the nearest value by looking at each; of two, the even index."""
    return min(range(len(values)), key=lambda i: (abs(values[i] - x), i % 2))


def brute_force(weight, global_scale):
    """One group at a time, one weight at a time."""
    codes, scales = [], []
    for group in weight.reshape(-1, 16) * np.float32(global_scale):
        scale = nearest(FINITE, float(np.abs(group).max() / np.float32(6)))
        step = np.float32(FINITE[scale])
        scales.append(scale)
        for x in group:
            code = nearest([0, 0.5, 1, 1.5, 2, 3, 4, 6], abs(float(x / step))) if step else 0
            codes.append(code | (8 if np.signbit(x) else 0))
    pairs = np.array(codes, np.uint8).reshape(len(weight), -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, np.array(scales, np.uint8).reshape(len(weight), -1)


def random(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def values(array):
    stored = {
        "weight_packed": array.packed,
        "weight_scale": array.scale,
        "weight_global_scale": np.array([array.global_scale], np.float32),
    }
    return dequantize("nvfp4-pack-quantized", stored)


def ties():
    """Every middle between two codes, both signs, in groups of amax 6 with a scale of one."""
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6]
    return np.array([middles + [-x for x in middles]], np.float32)


EDGES = {
    "random": random(7, 48),
    "heavy tails": random(5, 64, 1) ** 5,
    "one group far below the rest": np.concatenate([random(2, 16), random(2, 16) * 1e-9], 1),
    "groups around the least scale": random(64, 16) * np.logspace(-7, 0, 64)[:, None],
    "all zero": np.zeros((2, 32), np.float32),
    "one zero group": np.concatenate([np.zeros((1, 16)), random(1, 16)], 1),
    "denormal": random(2, 32) * np.float32(1e-40),
    "least denormal": np.full((1, 16), SMALLEST, np.float32),
    "near FP32's end": random(2, 16) * np.float32(5e37),
    "minus zero": -np.zeros((1, 16), np.float32),
    "ties": ties(),
}


@pytest.mark.parametrize("weight", EDGES.values(), ids=EDGES)
def test_quantiser_is_brute_force(weight):
    weight = weight.astype(np.float32)
    array = nvfp4.quantize(weight)
    packed, scale = brute_force(weight, array.global_scale)
    np.testing.assert_array_equal(array.scale, scale)
    np.testing.assert_array_equal(array.packed, packed)


def test_global_scale_gives_the_largest_group_the_largest_scale():
    weight = random(4, 64)
    array = nvfp4.quantize(weight)
    assert array.global_scale == np.float32(448 * 6 / np.abs(weight).max())
    assert array.scale.max() == 0x7E  # 448


def test_blocks_of_rows_change_nothing(monkeypatch):
    weight = random(9, 32)
    whole = nvfp4.quantize(weight)
    monkeypatch.setattr(nvfp4, "_BLOCK", 64)
    parts = nvfp4.quantize(weight)
    np.testing.assert_array_equal(whole.packed, parts.packed)
    np.testing.assert_array_equal(whole.scale, parts.scale)


def test_dequantised_is_within_half_a_step():
    weight = random(32, 256, 2)
    array = nvfp4.quantize(weight)
    back = values(array)
    group_max = np.abs(weight).reshape(32, -1, 16).max(2).repeat(16, axis=1)
    # The widest gap is 4 to 6 of 6; a scale may lie half an E4M3 step (1/16) off.
    assert (np.abs(back - weight) <= group_max * (1 / 6 + 1 / 16)).all()
    again = nvfp4.quantize(back)
    np.testing.assert_allclose(values(again), back, rtol=0.13)


def test_zero_stays_zero():
    array = nvfp4.quantize(np.zeros((2, 32), np.float32))
    assert array.global_scale == 1
    assert not values(array).any()


def test_low_nibble_is_even_k():
    weight = np.zeros((1, 16), np.float32)
    weight[0, :2] = [6, -3]
    assert nvfp4.quantize(weight).packed[0, 0] == 0x7 | 0xD << 4


def test_scale_bytes_decode_as_torch_does():
    np.testing.assert_array_equal(nvfp4.SCALES, np.array(FINITE, np.float32))


def test_scales_round_as_torch_does():
    middles = (nvfp4.SCALES[1:] + nvfp4.SCALES[:-1]) / 2
    x = np.concatenate(
        [
            nvfp4.SCALES,
            middles,
            np.nextafter(middles, np.float32(0)),
            np.nextafter(middles, np.float32(999)),
            np.abs(random(1, 4096)[0]) * 100,
        ]
    ).clip(max=448)
    ours = nvfp4._nearest(nvfp4.SCALES, x)
    theirs = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert (
        nvfp4._nearest(nvfp4.SCALES, np.array([449, 1e30, np.inf], np.float32)).tolist()
        == [126] * 3
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(bad):
    weight = random(2, 16)
    weight[1, 3] = bad
    with pytest.raises(ValueError, match="infinite or NaN"):
        nvfp4.quantize(weight)


def test_k_must_be_whole_groups():
    with pytest.raises(ValueError, match="K = 24 is not a multiple"):
        nvfp4.quantize(random(2, 24))
