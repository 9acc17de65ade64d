"""The plan: what to do about each problem, who does it, in words; the steps of every check."""

from pathlib import Path

import pytest
import yaml
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.checks import CHECKS
from volta_doctor.findings import Step, Waived
from volta_doctor.fix import plan, text
from volta_doctor.judge import examine
from volta_doctor.profile import detect

ROWS = checks()
CASES = Path(__file__).parents[2] / "data/doctor/checks"


def test_the_plan_holds_causes_once_and_no_waived_ones(risky):
    cause = structs.replace(
        risky("none", check_id="driver-loaded", status="fail"), hides=["smi-rc"]
    )
    folded = structs.replace(risky("none", check_id="smi-rc"), folded_under="driver-loaded")
    waived = structs.replace(risky("none"), waived=Waived(reason="r", expires="2027-01-01"))
    twice = [ROWS["ecc-mode"].warn("off", subject=f"GPU-{n}") for n in (1, 2)]
    info = ROWS["nouveau"].info("i")
    fixes = plan([cause, folded, waived, *twice, info, ROWS["acs"].ok("o")])
    assert [(fix.id, list(fix.found)) for fix in fixes] == [
        ("driver-loaded", ["host"]),
        ("ecc-mode", ["GPU-1", "GPU-2"]),
    ]
    assert [fix.id for fix in plan([info], info=True)] == ["nouveau"]


@pytest.mark.parametrize(
    ("risk", "steps", "whose"),
    [
        ("none", [Step(run=["true"])], ""),
        ("reconfigure", [Step(run=["true"])], ""),
        ("restart", [Step(run=["true"])], ""),
        ("restart", [], "it takes judgement"),
        ("reboot", [Step(run=["true"])], "it takes a reboot"),
        ("rebuild", [], "it takes a build"),
        ("hardware", [], "it takes hands on the machine"),
    ],
)
def test_who_does_it(risk, steps, whose, risky):
    assert plan([risky(risk, *steps)])[0].for_you == whose


def test_the_plan_in_words(snapshot_with, risky):
    steps = [
        Step(write="/etc/x.conf", content="[Service]\nA=1\n"),
        Step(run=["systemctl", "restart", "a b"], undo=["systemctl", "restart", "a b"]),
        Step(run=["nvidia-smi", "-r"]),
    ]
    facts = snapshot_with({}).facts
    found = [risky("reconfigure", *steps), risky("reboot", check_id="acs")]
    found += [structs.replace(found[-1], subject=f"GPU-{n}") for n in (1, 2)]
    found += [structs.replace(found[-1], subject="GPU-3", message="It is worse.")]
    said = text(plan(found), facts, 200)
    for line in (
        "1. WARN iommu",
        "   It is bad.",
        f"   fix: {ROWS['iommu'].fix}",
        "   risk: reconfigure; fix --apply does it",
        "   running now: volta-serve.service (pid 2311)",
        "     write /etc/x.conf:",
        "       | A=1",
        "       undo: the file as it was, or none",
        "     $ systemctl restart 'a b'",
        "       undo: systemctl restart 'a b'",
        "       undo: none, what it changes is not kept",
        "2. WARN acs",
        "   GPU-1, GPU-2: It is bad.",
        "   GPU-3: It is worse.",
        "   risk: reboot; for you: it takes a reboot",
    ):
        assert f"{line}\n" in said
    narrow = text(plan(found), facts, 60).splitlines()
    assert all(len(line) <= 60 for line in narrow)


@pytest.mark.parametrize(("subject", "told"), [("host", 1), ("a.service", 0), ("b.service", 1)])
def test_a_fix_of_one_server_warns_of_no_other(snapshot_with, subject, told, risky, sh):
    running = {"name": "b.service", "engine": "vllm", "source": "ps", "argv": [], "pids": [7]}
    servers = [running | {"name": "a.service", "pids": []}, running]
    facts = snapshot_with({"serve": {"servers": servers}}).facts
    found = structs.replace(risky("restart", sh("true")), subject=subject)
    assert text(plan([found]), facts, 200).count("running now: b.service (pid 7)") == told


def test_one_remedy_for_several_gpus_is_told_once_with_all_its_steps(snapshot_with, risky, sh):
    cards = [
        structs.replace(
            risky("reconfigure", sh(f"set {n}"), check_id="ecc-mode"), subject=f"GPU-{n}"
        )
        for n in range(3)
    ]
    said = text(plan([risky("reboot"), *cards]), snapshot_with({}).facts, 200)
    assert said.count("fix: ") == 2
    assert "2-4. WARN ecc-mode\n   GPU-0, GPU-1, GPU-2: It is bad.\n" in said
    assert [f"$ sh -c 'set {n}'" in said for n in range(3)] == [True] * 3


@pytest.mark.parametrize("check_id", CHECKS)
def test_the_steps_of_every_check_are_sound(check_id, snapshot_with):
    path = CASES / f"{check_id}.yaml"
    for case in yaml.safe_load(path.read_text()) if path.exists() else []:
        facts = snapshot_with(case["facts"]).facts
        for finding in examine(facts, ROWS[check_id], detect(facts)):
            steps = finding.remedy.steps
            for step in steps:
                assert bool(step.run) != bool(step.write), "a command, or a file"
                assert not step.write or (step.write.startswith("/") and step.content)
                assert "rm" not in step.run, "set aside what cannot be restored"
                text(plan([finding], info=True), facts, 80)
            writes = [step.write for step in steps if step.write]
            assert len(writes) == len(set(writes)), "one file, one step"
