"""The kernels' bench on the CPU: what it measures, at tiny sizes, and what it writes."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from kernel_bench import attention, experts, matrices, operations, plot, report, shapes, small_model
from kernel_bench.measure import GraphTimer, Limits, Row, WallTimer, limits

from volta_runtime import ops
from volta_runtime.ops.formats import FORMATS
from volta_runtime.ops.native import ACTIVATION

TINY = shapes.Model(
    "tiny", 64, 96, "made up", intermediate=80, heads=4, kv_heads=2, head_dim=32,
    experts=8, top_k=2, moe_intermediate=48, gdn=72,
)  # fmt: skip
LIMITS = Limits(copy=4e12, matmul=8e14, floor_us=1.0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def timer(request):
    if request.param == "cpu":
        return WallTimer(repeats=1)
    request.getfixturevalue("cuda")
    return GraphTimer()


@pytest.fixture
def size(timer):
    """Bytes of an activation."""
    return ACTIVATION[timer.device.type].itemsize


def row(**fields):
    given = {
        "device": "cuda", "kernel": "linear", "model": "curve", "name": "", "shape": "1024x4096",
        "m": 1, "format": "q4_k", "bytes": 4_000_000, "flops": 8_000_000, "us": 2.0,
        "median_us": 3.0, "torch_us": 6.0,
    }  # fmt: skip
    return Row(**(given | fields))


def measured(rows):
    """Rows as a set of what they are of, each once, and with sizes and times that can be."""
    rows = list(rows)
    keys = [(r.kernel, r.model, r.name, r.shape, r.m, r.format) for r in rows]
    assert len(set(keys)) == len(keys)
    assert all(r.bytes > 0 and 0 < r.us <= r.median_us for r in rows)
    return rows


def test_matrices_of_a_rank():
    by_name = {m.name: (m.n, m.k) for m in shapes.matrices(shapes.LLAMA_70B, 2)}
    assert by_name == {
        "qkv": (5120, 8192),
        "o": (8192, 4096),
        "gate_up": (28672, 8192),
        "down": (8192, 14336),
        "lm_head": (64128, 8192),
    }
    hybrid = [{m.name: m.n for m in shapes.matrices(shapes.QWEN_HYBRID, n)} for n in (1, 2, 4)]
    assert [names["gdn"] for names in hybrid] == [16480, 8240, 4120]
    assert "qkv" not in hybrid[0]
    experts = [(m.n, m.k, m.count) for m in shapes.expert_matrices(shapes.QWEN_MOE)]
    assert experts == [(1536, 2048, 128), (2048, 768, 128)]
    assert not list(shapes.expert_matrices(shapes.QWEN_7B))


def test_ranks_share_everything_evenly():
    for model, ranks in shapes.MODELS:
        for size in (model.heads, model.kv_heads, model.intermediate, model.vocab, model.gdn):
            assert size % ranks == 0, (model.name, ranks, size)


@pytest.mark.parametrize("name", matrices.FORMAT_NAMES)
def test_random_matrices_are_such_as_are_packed(name, timer):
    for matrix in (shapes.Matrix("", "", 200, 512), shapes.Matrix("", "gate_up", 128, 256)):
        weight = matrices.random_packed(matrix, name, timer.device)
        ops.packed.check_packed(weight)
        again = matrices.rotated(weight, 3)
        assert len({w.data.data_ptr() for w in again}) == 3
        assert ops.packed.dequantize(weight).abs().max() > 0


def test_products(timer, size):
    dense = [shapes.Matrix("reference", "down", 40, 256), *shapes.matrices(TINY, 2)]
    rows = measured(matrices.products(timer, dense, ms=(1, 3)))
    of_down = {r.format for r in rows if r.model == "reference" and r.kernel == "linear"}
    assert of_down - set(matrices.FORMAT_NAMES) == {f"torch float{8 * size}"}
    assert of_down > set(matrices.FORMAT_NAMES)
    assert {r.format for r in rows if r.kernel == "dequantize"} == set(matrices.FORMAT_NAMES)
    for r in rows:
        n, k = (int(size) for size in r.shape.split("x"))
        if r.format in FORMATS:
            assert k % FORMATS[r.format].multiple == 0
        if r.kernel == "linear":
            assert r.flops == 2 * r.m * n * k
            assert (r.torch_us is None) == r.format.startswith("torch")


def test_bytes_of_a_product_are_those_of_its_tiles(timer, size):
    [matrix] = [shapes.Matrix("reference", "", 64, 256)]
    rows = measured(matrices.products(timer, [matrix], ["nvfp4"], ms=(2,)))
    [r] = [r for r in rows if (r.kernel, r.format) == ("linear", "nvfp4")]
    tiles = 2 * 2 * 2304
    assert r.bytes == tiles + 2 * 4 * 64 + size * 2 * (256 + 64)


def test_attention(timer, size):
    sizes = attention.Sizes(sequences=2, context=40, head_dim=64)
    rows = measured(attention.decode(timer, sizes, heads=((2, 3),)))
    elements = 2 * 2 * 40 * 2 * 64
    assert {r.format: r.bytes - 2 * size * 2 * 6 * 64 for r in rows} == {
        "float16": 2 * elements,
        "float8_e5m2": elements,
        "int8": elements,
    }
    rows = measured(attention.write(timer, sizes, ms=(3,), heads=(2,)))
    assert [r.bytes for r in rows] == [2 * 3 * 2 * 64 * (size + wide) for wide in (2, 1, 1)]
    sizes = attention.Sizes(chunk=8, lengths=(8, 24), head_dim=64)
    rows = measured(attention.prefill(timer, sizes, heads=((2, 3),)))
    assert len(rows) == 6
    assert {r.flops for r in rows} == {4 * 6 * 64 * 36, 4 * 6 * 64 * (36 + 8 * 16)}


def test_operations(timer):
    rows = measured(operations.decoder(timer, TINY, 2, ms=(1, 3)))
    assert {r.kernel for r in rows} == {
        "rms_norm", "embedding", "gated_activation", "qk_norm_rope",
    }  # fmt: skip
    bare = shapes.Model("bare", 64, 96, "made up")
    rows = measured(operations.decoder(timer, bare, 1, ms=(2,)))
    assert {r.kernel for r in rows} == {"rms_norm", "embedding"}
    rows = measured(operations.sampling(timer, ms=(1, 2), vocab=50))
    assert {r.kernel for r in rows} == {"sample", "top_logprobs"}
    rows = measured(operations.routing(timer, TINY, ms=(1, 5)))
    assert {r.kernel for r in rows} == {"moe_route", "moe_permute", "moe_combine"}


def test_experts(timer, size):
    rows = measured(experts.products(timer, TINY, ["nvfp4", "fp8"], ms=(1, 3)))
    assert len(rows) == 8
    [one] = [r for r in rows if (r.name, r.format, r.m) == ("down", "nvfp4", 1)]
    tiles, chosen = 2 * 1 * 2304, 2
    assert one.bytes == chosen * (tiles + 2 * 4 * 64) + size * chosen * (48 + 64)


def test_calls_one_after_another_read_other_experts(timer):
    first, used = experts._choose(timer, 1, 8, 128, 0)
    then, _ = experts._choose(timer, 1, 8, 128, used)
    assert not {*first.flatten().tolist()} & {*then.flatten().tolist()}
    many, used = experts._choose(timer, 64, 8, 128, 120)
    assert used == many.unique().numel()
    assert all(row.unique().numel() == 8 for row in many)


def test_a_small_model_is_the_sum_of_its_matrices():
    rows = measured(small_model.token(WallTimer(repeats=1), layers=2, head=(40, 576), ms=(1,)))
    *parts, whole = rows
    layers = [r for r in parts if r.kernel == "nvfp4_linear"]
    [head] = [r for r in parts if r.kernel == "half_linear"]
    assert whole.us == pytest.approx(2 * sum(r.us for r in layers) + head.us)
    assert whole.bytes == 2 * sum(r.bytes for r in layers) + head.bytes


@pytest.mark.gpu
def test_times_of_a_gpu_are_of_the_calls_alone(cuda):
    timer = GraphTimer()
    of = limits(timer)
    assert 1e11 < of.copy < 2e13
    assert 1e13 < of.matmul < 5e15
    assert 0 < of.floor_us < 20
    one, many = (
        timer.time([lambda x=x: x.add_(1)]).best
        for x in (torch.zeros(n << 26, device=cuda) for n in (1, 4))
    )
    assert many == pytest.approx(4 * one, rel=0.3)


@pytest.mark.gpu
def test_a_call_that_fails_leaves_the_next_to_be_measured(cuda):
    timer = GraphTimer()
    x = torch.zeros(8, device=cuda)
    made = iter([None])  # fails in the capture, not before it

    def fail():
        x.add_(1)
        if next(made, 1):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        timer.time([fail])
    assert timer.time([lambda: x.add_(1)]).best > 0


def test_figures():
    told = row().figures(LIMITS)
    assert told["gb_s"] == pytest.approx(2000)
    assert told["of_copy"] == pytest.approx(0.5)
    assert told["tflop_s"] == pytest.approx(4)
    assert told["of_matmul"] == pytest.approx(0.005)
    assert told["of_limit"] == told["of_copy"]
    assert told["torch_us"] == 6.0


def test_what_is_written_can_be_read(tmp_path):
    rows = [row(), row(shape="2048x4096", us=3.0), row(m=8, us=4.0), row(name="x", torch_us=None)]
    told = report.result(rows, {"cuda": LIMITS}, ["linear: out of memory"], "--quick")
    files = {file.suffix: file.read_text() for file in report.write(told, tmp_path)}
    assert json.loads(files[".json"]) == told
    assert told["rows"][0]["us"] == 2.0
    assert told["limits"] == {"cuda": {"copy_gb_s": 4000, "matmul_tflop_s": 800, "floor_us": 1}}
    lines = files[".md"].splitlines()
    assert "Failed: linear: out of memory" in lines
    assert "| curve |  | 1024x4096 | q4_k | 2.0 (50%, torch 6.0) | 4.0 (25%, torch 6.0) |" in lines
    assert "| curve | x | 1024x4096 | q4_k | 2.0 (50%) |  |" in lines
    assert ElementTree.fromstring(files[".svg"]).tag.endswith("svg")  # our own


def test_plot_puts_larger_values_higher():
    drawn = plot.svg({"a < b": {"q": [(1024, 0.1), (4096, 0.9)]}}, "N", "part")
    tree = ElementTree.fromstring(drawn)
    [line] = tree.iter("{http://www.w3.org/2000/svg}polyline")
    (x0, y0), (x1, y1) = (map(float, p.split(",")) for p in line.get("points").split())
    assert x0 < x1
    assert y0 > y1


def test_without_a_curve_there_is_no_plot(tmp_path):
    told = report.result([row(model="reference")], {"cuda": LIMITS}, [], "")
    assert {file.suffix for file in report.write(told, tmp_path)} == {".json", ".md"}


def test_command_line_says_why_only_the_cpu_is_measured(repo, tmp_path):
    environment = {"PYTHONPATH": f"{repo}/tests/bench:{repo}/runtime", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "kernel_bench", "--only", "nothing", "--out", tmp_path],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Only the CPU is measured: " in done.stdout
    [file] = tmp_path.glob("kernels-cpu-*-part.json")
    assert json.loads(file.read_text())["rows"] == []
