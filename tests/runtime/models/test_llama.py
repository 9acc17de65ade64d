import json

import pytest
import torch
from safetensors.torch import load_file

from volta_runtime.checkpoint import CheckpointError
from volta_runtime.errors import ModelError
from volta_runtime.layers import GatedLinear, NVFP4Linear, PackedLinear, Segment
from volta_runtime.ops import nvfp4_pack
from volta_runtime.ops.packed_from import pack_nvfp4

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
IDS = torch.tensor([1, 90, 17, 200, 33, 33, 258, 5, 60, 61, 62, 4])


class Reference:
    """Llama as its paper has it: one token and one head at a time, in float64."""

    def __init__(self, directory, config):
        self.tensors = load_file(directory / "model.safetensors")
        self.c = config

    def weight(self, module):
        if f"{module}.weight" in self.tensors:
            return self.tensors[f"{module}.weight"].double()
        codes = self.tensors[f"{module}.weight_packed"].long()
        values = E2M1[torch.stack([codes & 15, codes >> 4], -1).flatten(1)].double()
        scale = self.tensors[f"{module}.weight_scale"].double().repeat_interleave(16, 1)
        return values * scale / self.tensors[f"{module}.weight_global_scale"].double()

    def norm(self, x, module):
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + self.c["rms_norm_eps"]).sqrt() * self.weight(module)

    def rotate(self, x, position):
        half = x.shape[-1] // 2
        pair = torch.complex(x[..., :half], x[..., half:])
        turn = position * self.c["rope_theta"] ** -(torch.arange(half).double() / half)
        pair = pair * torch.polar(torch.ones_like(turn), turn)
        return torch.cat([pair.real, pair.imag], -1)

    def attend(self, x, prefix):
        heads, kv_heads = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        q, k, v = (
            (x @ self.weight(f"{prefix}.{name}_proj").T).view(len(x), n, -1)
            for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        q, k = (torch.stack([self.rotate(row, t) for t, row in enumerate(m)]) for m in (q, k))
        out = torch.zeros_like(q)
        for t in range(len(x)):
            for h in range(heads):
                g = h // (heads // kv_heads)
                scores = k[: t + 1, g] @ q[t, h] / q.shape[-1] ** 0.5
                out[t, h] = scores.softmax(0) @ v[: t + 1, g]
        return out.flatten(1) @ self.weight(f"{prefix}.o_proj").T

    def logits(self, ids):
        x = self.weight("model.embed_tokens")[ids]
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}"
            x = x + self.attend(self.norm(x, f"{p}.input_layernorm"), f"{p}.self_attn")
            y = self.norm(x, f"{p}.post_attention_layernorm")
            gate, up = (y @ self.weight(f"{p}.mlp.{name}_proj").T for name in ("gate", "up"))
            x = x + (torch.sigmoid(gate) * gate * up) @ self.weight(f"{p}.mlp.down_proj").T
        head = "model.embed_tokens" if self.c["tie_word_embeddings"] else "lm_head"
        return self.norm(x, "model.norm") @ self.weight(head).T


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def forward(model, *parts):
    """Logits after each part, run one after the other in one sequence."""
    cache = model.make_cache(1).acquire()
    with torch.inference_mode():
        return torch.cat([model.forward(part, [Segment(cache, len(part))]) for part in parts])


@pytest.mark.parametrize("tied", [True, False])
def test_logits_match_the_reference(make_tiny, load, tied):
    directory = make_tiny(tie_word_embeddings=tied)
    config = {
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "tie_word_embeddings": tied,
    }
    expected = Reference(directory, config).logits(IDS)
    found = forward(load(directory), *IDS.split(1)).double()
    assert error(found, expected) < 1e-3


def test_pieces_give_what_the_whole_prompt_gives(tiny, load):
    model = load(tiny)
    whole = forward(model, IDS)
    for size in (1, 5):
        assert error(forward(model, *IDS.split(size))[-1:], whole) < 1e-4


def test_sequences_in_one_step_do_not_mix(tiny, load):
    model = load(tiny)
    cache = model.make_cache(3)
    a, b, c = (cache.acquire() for _ in range(3))
    with torch.inference_mode():
        model.forward(IDS[:5], [Segment(a, 5)])
        tokens = torch.cat([IDS[5:6], IDS, IDS.flip(0)[:3]])
        together = model.forward(tokens, [Segment(a, 1), Segment(b, len(IDS)), Segment(c, 3)])
    alone = [forward(model, IDS[:6]), forward(model, IDS), forward(model, IDS.flip(0)[:3])]
    assert error(together, torch.cat(alone)) < 1e-4
    assert (a.length, b.length, c.length) == (6, len(IDS), 3)


def test_a_reused_slot_forgets(tiny, load):
    model = load(tiny)
    cache = model.make_cache(1)
    with torch.inference_mode():
        old = cache.acquire()
        model.forward(IDS.flip(0), [Segment(old, len(IDS))])
        cache.release(old)
        new = cache.acquire()
        assert error(model.forward(IDS, [Segment(new, len(IDS))]), forward(model, IDS)) < 1e-6


@pytest.mark.parametrize("order", ["plain", "gate_up"])
def test_layers_of_either_packing_agree(order):
    torch.manual_seed(0)
    parts = (
        torch.randint(256, (150, 24), dtype=torch.uint8),
        torch.randint(126, (150, 3), dtype=torch.uint8),
        torch.rand(150) * 1e-3,
    )
    blocks, tiles = NVFP4Linear(nvfp4_pack(*parts)), PackedLinear(pack_nvfp4(*parts, order))
    layer = GatedLinear(blocks) if order == "gate_up" else blocks
    x = torch.randn(3, 48)
    torch.testing.assert_close(tiles(x), layer(x))


@pytest.fixture(scope="module")
def wide(make_tiny):
    """Fused layers whose parts end within a tile, and K that fills no chunk."""
    return make_tiny(
        hidden_size=144, num_attention_heads=2, num_key_value_heads=1, intermediate_size=208
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
@pytest.mark.parametrize("name", ["tiny", "wide"])
@pytest.mark.parametrize("size", [1, 2, 4, 48])  # FP16 sums, tensor cores and cuBLAS
def test_cuda_matches_the_cpu(request, load, name, size):
    model, ids = request.getfixturevalue(name), IDS.repeat(4)
    gpu = load(model, device="cuda")
    found = forward(gpu, *ids.cuda().split(size)).cpu()
    assert error(found, forward(load(model), *ids.split(size))) < 1e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
def test_a_senseless_scale_is_refused_on_cuda(make_tiny, load):
    name = "model.layers.1.mlp.up_proj.weight_scale"
    nan = torch.full((96, 4), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ModelError, match=r"gate_proj \+ model.layers.1.mlp.up_proj: .* NaN"):
        load(make_tiny(lambda t: t.update({name: nan})), device="cuda")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.norm.weight"),
            "model.norm.weight: is missing",
        ),
        (
            lambda t: t.update({"model.extra.weight": torch.zeros(3)}),
            "model.extra.weight is not part of the model",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(32)}),
            "model.norm.weight: has 32 values, and hidden_size of config.json makes it 64",
        ),
        (
            lambda t: [t.pop(name) for name in list(t) if "layers.1" in name and "_proj" in name],
            "; and 2 more",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(make_tiny, load, change, message):
    with pytest.raises((CheckpointError, ModelError)) as raised:
        load(make_tiny(change))
    assert message in str(raised.value)


def test_a_quantised_weight_without_its_scale_is_refused(make_tiny, load):
    name = "model.layers.1.mlp.up_proj.weight_scale"
    with pytest.raises(CheckpointError, match=r"mlp\.up_proj"):
        load(make_tiny(lambda t: t.pop(name)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"MambaForCausalLM.*supported: \['LlamaFor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": None}, "missing required field `num_hidden_layers`"),
        ({"hidden_size": 0}, "Expected `int` >= 1 - at `hidden_size`"),
        ({"head_dim": "16"}, "head_dim is '16', not a whole number that can be a size"),
        ({"rope_scaling": "linear"}, "got `str` - at `rope_scaling`"),
        ({"rope_theta": 0}, "at `rope_theta`"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"max_position_embeddings": 10**13}, "rotary table for 10000000000000 tokens"),
    ],
)
def test_unsupported_config_is_refused(make_tiny, load, config, message):
    directory = make_tiny()
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises((CheckpointError, ModelError), match=message):
        load(directory)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 240, "num_attention_heads": 16}, "head_dim 15 is odd"),
        ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads 3"),
    ],
)
def test_unsupported_shapes_are_refused(make_tiny, load, config, message):
    with pytest.raises((CheckpointError, ModelError)) as raised:
        load(make_tiny(**config))
    assert message in str(raised.value)


def test_a_context_beyond_the_model_is_refused(tiny, load):
    with pytest.raises(ModelError, match=r"--max-model-len 257 .* 256"):
        load(tiny, max_len=257)


def test_weights_beyond_float16_are_refused(make_tiny, load):
    def enlarge(tensors):
        tensors["model.embed_tokens.weight"] = torch.full((259, 64), 1e5)

    with pytest.raises(ModelError, match=r"model.embed_tokens.weight.*65504"):
        load(make_tiny(enlarge))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_global_scale_is_refused(make_tiny, load, value):
    name = "model.layers.1.mlp.up_proj.weight_global_scale"
    with pytest.raises(ModelError, match=f"{name} is {value}, expected a positive number"):
        load(make_tiny(lambda t: t.update({name: torch.tensor([value])})))


def test_nan_scales_and_norms_are_refused(make_tiny, load):
    name = "model.layers.1.mlp.up_proj.weight_scale"
    nan = torch.full((96, 4), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ModelError, match=r"gate_proj \+ model.layers.1.mlp.up_proj: .* NaN"):
        load(make_tiny(lambda t: t.update({name: nan})))
    with pytest.raises(ModelError, match=r"model.norm.weight holds NaN"):
        load(make_tiny(lambda t: t.update({"model.norm.weight": torch.full((64,), torch.nan)})))


def test_a_cache_beyond_the_memory_is_refused(tiny, load):
    with pytest.raises(ModelError, match=r"1000000000 sequences of 256 tokens would take \d+\.\d"):
        load(tiny).make_cache(10**9)
