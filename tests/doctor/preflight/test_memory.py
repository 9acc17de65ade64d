"""Does it fit: the verdict names the parts, and what would fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from models import checkpoint, linear_in, shapes

from volta_doctor.catalog.engines import engines
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.host import HostFacts
from volta_doctor.facts.host.memory import Swap
from volta_doctor.facts.model import Facts, Section
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Status
from volta_doctor.preflight.cards import of_flag
from volta_doctor.preflight.judge import examine
from volta_doctor.preflight.subject import Subject
from volta_runtime.checkpoint.architecture import from_config
from volta_runtime.checkpoint.contents import FileInfo
from volta_runtime.checkpoint.scales import read_scales

DATA = Path(__file__).parents[2] / "data" / "runtime" / "architectures"
GIB = 2**30


def model(name, row="dense", **more):
    a = from_config(json.loads((DATA / f"{name}.json").read_text()))
    return checkpoint(a, shapes(a, **more), linear_in(row))


QWEN = model("qwen2.5-7b", bias=True)


def judge(check_id, of=QWEN, cards=None, engine="vllm", host=None, **flags):
    subject = Subject(
        checkpoint=of,
        scales=read_scales(of),
        engine=engine and engines()[engine],
        flags=Flags(**flags),
        cards=cards,
        host=Facts(host=Section(ok=True, data=host)) if host else Facts(),
    )
    return examine(subject, model_checks()[check_id])


def fit(*args, **more):
    (found,) = judge("mem-fit", *args, **more)
    return found


TWO = of_flag("v100-sxm2-16gb", 2)


def test_it_fits_and_the_parts_are_told():
    found = fit(cards=TWO, tensor_parallel_size=2, max_model_len=8192)
    assert found.status is Status.OK
    for part in ("weights 6.1 GiB", "embeddings 1.0 GiB", "kv cache 224 MiB", "context", "graphs"):
        assert part in found.message
    assert "28.0 KiB" in found.message


def test_it_does_not_fit_and_what_would_is_told():
    found = fit(cards=of_flag("v100-sxm2-16gb", 1), max_model_len=8192)
    assert found.status is Status.FAIL
    assert "as it is on 2 such GPUs" in found.message


def test_a_shorter_context_is_named():
    cards = of_flag("v100-sxm2-32gb", 1)
    long = replace(QWEN, architecture=replace(QWEN.architecture, max_position=1 << 20))
    found = fit(long, cards=cards)
    assert found.status is Status.FAIL
    assert "--max-model-len" in found.message
    context = int(found.message.split("--max-model-len ")[1].split()[0].strip(",."))
    assert fit(long, cards=cards, max_model_len=context, enforce_eager=True).status is Status.OK


def test_graphs_that_may_not_fit_are_a_warning():
    cards = of_flag("v100-sxm2-32gb", 1)
    share = (15.3 * GIB) / (32494 * 2**20)
    found = fit(cards=cards, max_model_len=2048, gpu_memory_utilization=share)
    assert (found.status, "--enforce-eager would" in found.message) == (Status.WARN, True)


def test_nearly_all_of_a_gpu_is_a_warning():
    found = fit(cards=TWO, tensor_parallel_size=2, gpu_memory_utilization=0.97)
    assert found.status is Status.WARN
    assert "leaves under 5 %" in found.message


def test_more_gpus_than_there_are():
    found = fit(cards=TWO, tensor_parallel_size=4)
    assert (found.status, "4 GPUs are asked for, and there are 2" in found.message) == (
        Status.FAIL,
        True,
    )


def test_without_cards_it_is_not_judged_and_without_an_engine_one_is_taken():
    assert fit().status is Status.SKIP
    assert "no --engine was named" in fit(cards=TWO, engine=None, tensor_parallel_size=2).message


def test_an_engine_that_reserves_all_contexts():
    found = fit(cards=of_flag("v100-sxm2-32gb", 1), engine="embedded", max_model_len=4096)
    assert "4 x 4096 tokens" in found.message


def test_a_model_that_tells_nothing_is_unknown():
    assert fit(replace(QWEN, architecture=from_config({})), cards=TWO).status is Status.UNKNOWN


@pytest.mark.parametrize(("free", "status"), [(3 * GIB, Status.OK), (1 * GIB, Status.FAIL)])
def test_ram_for_the_largest_file(free, status):
    info = next(iter(QWEN.modules["lm_head"].tensors.values()))
    files = (FileInfo("model.safetensors", 2 * GIB), FileInfo("tokenizer.json", 9 * GIB))
    contents = replace(QWEN.contents, tensors={"lm_head.weight": info}, files=files)
    host = HostFacts(ram_bytes=64 * GIB, available_bytes=free, swap=Swap(), file_systems=[])
    found = judge("host-mem", replace(QWEN, contents=contents), host=host)
    assert [finding.status for finding in found] == [status, Status.OK]
    assert "model.safetensors has 2.0 GiB" in found[0].message


@pytest.mark.parametrize(
    ("space", "status"),
    [(None, Status.OK), (4.0, Status.OK), (16.0, Status.WARN), (24.0, Status.FAIL)],
)
def test_swap_space_of_all_ranks(space, status):
    host = HostFacts(ram_bytes=64 * GIB)
    found = judge("swap-space-thrash", host=host, tensor_parallel_size=2, swap_space_gib=space)
    assert [finding.status for finding in found] == [status]
