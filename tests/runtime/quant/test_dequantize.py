"""Decoding that no library-made checkpoint shows: house forms, cut blocks, odd orders, zeros."""

import numpy as np

from volta_runtime.quant import dequantize


def test_house_forms_are_codes_times_scales():
    codes = np.array([[0x21, 0xF7] * 16], np.uint8)  # 0.5, 1, 6, -6
    values = np.tile(np.array([0.5, 1, 6, -6], np.float32), 16)[None]
    scale = np.array([[0.25, 3]], np.float32)
    ours = dequantize("nvfp4-g32", {"weight": codes, "weight_scale": scale})
    np.testing.assert_array_equal(ours, values * np.repeat(scale, 32, axis=1))
    tall = np.repeat(codes, 130, axis=0)
    blocks = np.array([[0.25, 3], [1, 2]], np.float32)
    ours = dequantize("nvfp4-block", {"weight": tall, "weight_scale": blocks})
    np.testing.assert_array_equal(ours[127], (values * np.repeat(scale, 32, axis=1))[0])
    np.testing.assert_array_equal(ours[128], (values * np.repeat([[1, 2]], 32, axis=1))[0])
    doubled = dequantize(
        "nvfp4-g32",
        {"weight_packed": codes, "weight_scale": scale, "weight_scale_2": np.float32([2])},
    )
    np.testing.assert_array_equal(doubled, values * np.repeat(scale, 32, axis=1) * 2)


def test_two_blocks_are_not_two_rows():
    stored = {"weight": np.full((2, 256), 0x38, np.uint8), "weight_scale": np.float32([[2, 3]])}
    ours = dequantize("fp8-block", stored)
    np.testing.assert_array_equal(ours, [[2] * 128 + [3] * 128] * 2)


def test_columns_in_any_order_have_the_scale_of_their_group():
    k = np.arange(64)
    words = (k.reshape(1, 8, 8) % 16 << np.arange(0, 32, 4)).sum(-1).astype(np.int64)
    group = np.random.default_rng(0).permutation(k // 32).astype(np.int32)
    scale = np.array([[0.5, 2]], np.float32)
    stored = {
        "weight_packed": words.astype(np.uint32).view(np.int32),
        "weight_scale": scale,
        "weight_shape": np.array([1, 64]),
        "weight_g_idx": group,
    }
    ours = dequantize("pack-quantized-int4", stored)
    np.testing.assert_array_equal(ours, (k % 16 - 8)[None] * scale[:, group])


def test_a_zero_of_nothing_borrows_from_its_neighbour():
    zeros = np.array([[0x50505050]], np.uint32)  # 0 and 5 in turn, from the lowest
    stored = {
        "qweight": np.full((1, 8), 0x77777777, np.int32),
        "scales": np.ones((1, 8), np.float16),
        "qzeros": (zeros - np.uint32(0x11111111)).view(np.int32),
    }
    assert dequantize("gptq", stored)[:, 0].tolist() == [7, 2] * 4
    assert (
        dequantize("gptq", stored | {"qzeros": zeros.view(np.int32)}, gptq_v2=True)[:, 0].tolist()
        == [7, 2] * 4
    )
