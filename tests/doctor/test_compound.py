"""One failure that many checks see has one root: tests/data/doctor/compound.yaml."""

from pathlib import Path

import pytest
import yaml
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.facts.model import absent
from volta_doctor.findings import PROBLEMS
from volta_doctor.judge import judge
from volta_doctor.profile import detect

CASES = yaml.safe_load((Path(__file__).parents[1] / "data/doctor/compound.yaml").read_text())


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in CASES])
def test_one_root_leads_and_the_rest_is_folded_under_it(case, snapshot_with):
    facts = structs.replace(snapshot_with(case["facts"]).facts, active=absent())
    if "gpus" in case:
        left = facts.nvml.data.gpus[: case["gpus"]]
        nvml = structs.replace(facts.nvml.data, device_count=len(left), gpus=left)
        facts = structs.replace(facts, nvml=structs.replace(facts.nvml, data=nvml))
    findings = judge(facts, checks().values(), detect(facts))
    problems = [finding for finding in findings if finding.status in PROBLEMS]
    roots = [finding for finding in problems if finding.folded_under is None]
    assert {finding.id for finding in roots} == {case["root"]}
    assert roots[0].rank == 1
    assert {*case["folds"]} <= {*roots[0].hides}
    assert all(f.folded_under in (None, case["root"]) for f in problems)


@pytest.mark.parametrize(("gpu", "root"), [(0, "gpu-lost"), (1, None)])
def test_a_lost_gpu_explains_only_the_servers_that_use_it(gpu, root, snapshot_with):
    server = {"flags": {"tensor_parallel_size": 1}, "env": {"CUDA_VISIBLE_DEVICES": str(gpu)}}
    down = next(case["facts"]["service"] for case in CASES if "service" in case["facts"])
    lost = {"handle_error": {"error": 15, "text": "GPU is lost"}, "uuid": None}
    facts = snapshot_with(
        {"nvml": {"gpus": {0: lost}}, "serve": {"servers": {0: server}}, "service": down}
    ).facts
    findings = judge(facts, [checks()["gpu-lost"], checks()["service-ready"]], detect(facts))
    (service,) = [finding for finding in findings if finding.id == "service-ready"]
    assert (service.status, service.folded_under) == ("fail", root)
