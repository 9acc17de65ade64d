"""Rotary tables: published scalings, far positions, and what a config may lack."""

import math
import re

import pytest
import torch

from volta_runtime import ops

# dim, theta, length, fields: what transformers 5.24.0's ROPE_INIT_FUNCTIONS[rope_type] gives (in
# float32) for a config with these fields, head_dim = dim, rope_theta = theta,
# max_position_embeddings = 131072 (dynamic: 2048), and seq_len = length where it looks at that:
# frequencies of the pairs 1, dim / 8, dim / 4 and dim / 2 - 1, and the attention factor.
SHORT, LONG = [1 + i / 20 for i in range(48)], [1.0 + i for i in range(48)]
PUBLISHED = {
    "linear": (
        *(128, 1e6, 9),
        {"factor": 8.0},
        [0.100730277598, 0.003952847328, 0.000125000006, 1.55117e-07],
        1.0,
    ),
    "dynamic": (
        *(128, 1e4, 8192),
        {"factor": 2.0, "original_max_position_embeddings": 2048},
        [0.839625775814, 0.061005912721, 0.00372172147, 1.6496886e-05],
        1.0,
    ),
    "llama3": (
        *(64, 5e5, 9),
        {
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        [0.663601279259, 0.037606030703, 0.000429556705, 9.4183e-08],
        1.0,
    ),
    "yarn": (
        *(128, 1e6, 9),
        {"factor": 4.0, "original_max_position_embeddings": 32768},
        [0.805842220783, 0.031622778624, 0.000602941145, 3.10234e-07],
        1.138629436111989,
    ),
    "yarn with mscale": (
        *(64, 1e4, 9),
        {
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        },
        [0.749894201756, 0.10000000149, 0.005500000436, 3.333804e-06],
        1.0569662567531275,
    ),
    "yarn, not truncated": (
        *(64, 150000, 9),
        {
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        [0.689044296741, 0.050813272595, 0.000456483918, 3.02351e-07],
        1.3465735902799727,
    ),
    "yarn with attention_factor": (
        *(64, 150000, 9),
        {"factor": 32.0, "attention_factor": 1.25, "original_max_position_embeddings": 4096},
        [0.689044296741, 0.050813272595, 0.000580947497, 3.02351e-07],
        1.25,
    ),
    "proportional": (
        *(512, 1e6, 9),
        {"partial_rotary_factor": 0.25},
        [0.947463512421, 0.0, 0.0, 0.0],
        1.0,
    ),
    "longrope, short": (
        *(96, 1e4, 4096),
        {
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 4096,
            "factor": 32.0,
        },
        [0.786099255085, 0.0625, 0.004545454402, 3.6165002e-05],
        1.1902380714238083,
    ),
    "longrope, long": (
        *(96, 1e4, 4097),
        {
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 4096,
            "factor": 32.0,
        },
        [0.412702083588, 0.007692307699, 0.00039999999, 2.524016e-06],
        1.1902380714238083,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_scaled_frequencies(name, key):
    dim, theta, length, fields, frequencies, attention_factor = PUBLISHED[name]
    scaling = {key: re.match(r"\w+", name)[0], "rope_theta": theta, **fields}
    cos, sin = ops.rope_cache(dim, length, theta, scaling)[1].double().chunk(2)
    pairs = [1, dim // 8, dim // 4, dim // 2 - 1]
    got = torch.atan2(sin, cos)[pairs]
    expected = torch.tensor(frequencies, dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-12)  # as many digits are recorded
    factor = torch.full((dim // 2,), attention_factor, dtype=torch.float64)
    torch.testing.assert_close(torch.hypot(cos, sin), factor, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"rope_type": None}])
def test_the_table_at_far_positions(scaling):
    cos_sin = ops.rope_cache(8, 131075, 1e4, scaling)
    assert (cos_sin.dtype, cos_sin.shape) == (torch.float32, (131075, 8))
    for position in (0, 1, 65535, 65536, 131074):
        angles = [position * 1e4 ** (-pair / 4) for pair in range(4)]
        expected = [*map(math.cos, angles), *map(math.sin, angles)]
        got = cos_sin[position].double()
        torch.testing.assert_close(got, torch.tensor(expected).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("absent", ["absent", None, 0])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name in ("linear", "dynamic", "llama3", "yarn")
        for field in PUBLISHED[name][3]
    ]
    + [("longrope, long", field) for field in PUBLISHED["longrope, long"][3]],
)
def test_missing_fields_are_named(name, field, absent):
    dim, theta, length, fields, *_ = PUBLISHED[name]
    fields = {k: v for k, v in fields.items() if k != field}
    if absent != "absent":
        fields[field] = absent
    rope_type = re.match(r"\w+", name)[0]
    with pytest.raises(ValueError, match=f"rope type {rope_type} needs the field {field}"):
        ops.rope_cache(dim, length, theta, {"rope_type": rope_type, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_type": ["yarn"]}, "rope_type ['yarn'] is unknown; known: default"),
        ({"rope_type": "mrope2"}, "rope_type 'mrope2' is unknown; known: default, linear, dynamic"),
        (
            {"rope_type": "linear", "factor": "8"},
            "factor of rope type linear is '8', needs above 0",
        ),
        ({"rope_type": "linear", "factor": True}, "factor of rope type linear is True"),
        ({"rope_type": "linear", "factor": -2.0}, "factor of rope type linear is -2.0"),
        ({"rope_type": "linear", "factor": math.nan}, "factor of rope type linear is nan"),
        ({"rope_type": "yarn", "truncate": "no"}, "truncate is 'no', needs true or false"),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 9, "short_factor": [1.0]},
            "short_factor of rope type longrope needs a list of 32",
        ),
    ],
)
def test_malformed_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.rope_cache(64, 9, 1e4, fields)


@pytest.mark.parametrize(
    ("dim", "length", "theta"), [(63, 9, 1e4), (0, 9, 1e4), (64, 0, 1e4), (64, 9, 1.0)]
)
def test_rope_cache_refuses(dim, length, theta):
    with pytest.raises(
        ValueError, match=re.escape(f"rotary_dim {dim}, max_positions {length}, theta")
    ):
        ops.rope_cache(dim, length, theta)
