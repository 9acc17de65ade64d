"""Fixes: the plan, the steps that are taken, and the way back from each of them."""

import os
import stat
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from volta_doctor.apply import Applier, alone, needs_root, run, split
from volta_doctor.catalog import checks
from volta_doctor.checks import CHECKS
from volta_doctor.findings import Step, Waived
from volta_doctor.fix import plan, text
from volta_doctor.journal import Journal, JournalError, StepFailed
from volta_doctor.judge import examine
from volta_doctor.profile import detect

ROWS = checks()
CASES = Path(__file__).parents[1] / "data/doctor/checks"


def risky(risk, *steps, check_id="iommu", status="warn"):
    """A finding whose row has another risk."""
    return getattr(structs.replace(ROWS[check_id], risk=risk), status)("It is bad.", steps=steps)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "fixes/fix-1.yaml", "gpu1", "2026-11-30T12:00:00+00:00")


@pytest.fixture
def apply(journal):
    """Take the fixes of findings; returns what was said, and leaves the journal."""

    def take(*findings):
        said = []
        applier = Applier(journal, said.append)
        try:
            for fix in plan(findings):
                applier.take(fix)
        except KeyboardInterrupt:
            said.append("stopped")
        applier.finish()
        return "\n".join(said)

    return take


def undo(journal):
    said = []
    again = Journal.load(journal.path)
    whole = again.undo(again.entries, run, said.append)
    return whole, "\n".join(said)


def sh(line, back=""):
    return Step(run=["sh", "-c", line], undo=["sh", "-c", back] if back else [])


def test_the_plan_holds_causes_once_and_no_waived_ones():
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
        ("none", [sh("true")], ""),
        ("reconfigure", [sh("true")], ""),
        ("restart", [sh("true")], ""),
        ("restart", [], "it takes judgement"),
        ("reboot", [sh("true")], "it takes a reboot"),
        ("rebuild", [], "it takes a build"),
        ("hardware", [], "it takes hands on the machine"),
    ],
)
def test_who_does_it(risk, steps, whose):
    assert plan([risky(risk, *steps)])[0].for_you == whose


def test_the_plan_in_words(snapshot_with):
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
def test_a_fix_of_one_server_warns_of_no_other(snapshot_with, subject, told):
    running = {"name": "b.service", "engine": "vllm", "source": "ps", "argv": [], "pids": [7]}
    servers = [running | {"name": "a.service", "pids": []}, running]
    facts = snapshot_with({"serve": {"servers": servers}}).facts
    found = structs.replace(risky("restart", sh("true")), subject=subject)
    assert text(plan([found]), facts, 200).count("running now: b.service (pid 7)") == told


def test_one_remedy_for_several_gpus_is_told_once_with_all_its_steps(snapshot_with):
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


def test_a_file_is_written_and_put_back(apply, journal, tmp_path):
    old, new = tmp_path / "old.conf", tmp_path / "a/b/new.conf"
    old.write_text("before")
    old.chmod(0o640)
    writes = [Step(write=str(path), content="after") for path in (old, new)]
    apply(risky("reconfigure", *writes))
    assert (old.read_text(), new.read_text()) == ("after", "after")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    (backup,) = tmp_path.glob("old.conf.*")
    assert backup.read_text() == "before"
    assert "fix --undo" in journal.path.read_text()
    assert undo(journal)[0]
    assert old.read_text() == "before"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert not (tmp_path / "a").exists()
    assert not backup.exists()
    assert undo(journal) == (True, "")  # once is enough


def test_a_file_that_somebody_changed_since_is_left_alone(apply, journal, tmp_path):
    path = tmp_path / "x"
    path.write_text("before")
    apply(risky("none", Step(write=str(path), content="after")))
    path.write_text("mine")
    whole, said = undo(journal)
    assert not whole
    assert f"{path} has changed since" in said
    assert path.read_text() == "mine"


def test_a_failed_step_ends_its_fix_and_tells_the_way_back(apply, journal, tmp_path):
    made = tmp_path / "made"
    steps = [Step(write=str(made), content="x"), sh("echo no such card >&2; exit 3"), sh("false")]
    said = apply(risky("none", *steps), risky("none", sh("true"), check_id="acs"))
    assert "FAILED: sh -c 'echo no such card >&2; exit 3': no such card" in said
    assert f"undone by: rm {made}" in said
    assert "acs: sh -c true" in said
    assert [entry.state for entry in journal.entries] == ["done", "failed", "done"]
    whole, said = undo(journal)
    assert not made.exists()
    assert not whole
    assert "nothing takes back: sh -c true" in said


def test_a_command_that_is_not_there_is_a_failed_step(apply):
    assert "FAILED: /no/such: /no/such: No such file" in apply(
        risky("none", Step(run=["/no/such"]))
    )


def test_reloads_are_done_once_after_all_files_and_again_on_the_way_back(apply, journal, tmp_path):
    log = tmp_path / "log"
    files = [tmp_path / "one", tmp_path / "two"]
    reload = Step(run=["sh", "-c", f"ls {tmp_path} | grep -cE 'one|two' >> {log}"])
    reload = structs.replace(reload, undo=reload.run)
    log.touch()
    found = [
        risky("restart", Step(write=str(path), content="x"), reload, check_id=check_id)
        for path, check_id in zip(files, ("iommu", "acs"), strict=True)
    ]
    apply(*found)
    assert log.read_text() == "2\n"
    assert [entry.id for entry in journal.entries] == ["iommu, acs", "iommu", "acs"]
    # grep -c ends with 1 when it counts 0, which is the right count here
    undo(journal)
    assert log.read_text() == "2\n0\n"


def test_only_what_ends_a_fix_is_put_off():
    again = Step(run=["reload"], undo=["reload"])
    own, owed = split([sh("a"), again, sh("b"), again, again])
    assert (own, owed) == ([sh("a"), again, sh("b")], [again, again])


def test_the_way_back_is_from_the_last_to_the_first(apply, journal, tmp_path):
    log = tmp_path / "log"
    apply(risky("none", *[sh("true", f"echo {n} >> {log}") for n in (1, 2, 3)]))
    assert undo(journal)[0]
    assert log.read_text().split() == ["3", "2", "1"]


def test_a_step_of_two_fixes_is_taken_once(apply, tmp_path):
    log = tmp_path / "log"
    once = sh(f"echo x >> {log}")
    said = apply(risky("none", once), risky("none", once, check_id="acs"))
    assert log.read_text() == "x\n"
    assert "done already" in said


@pytest.mark.parametrize("how", ["INT", "TERM", "HUP"])
def test_ctrl_c_lets_the_step_end_and_takes_its_fix_back(apply, journal, tmp_path, how):
    first, ended, never = tmp_path / "first", tmp_path / "ended", tmp_path / "never"
    interrupt = sh(f"kill -{how} {os.getpid()}; sleep 0.2; touch {ended}", f"rm {ended}")
    whole = risky("none", Step(write=str(first), content="x"), check_id="acs")
    half = risky("none", Step(write=f"{first}2", content="x"), interrupt, sh(f"touch {never}"))
    said = apply(whole, half)
    assert said.endswith("stopped")
    assert first.exists()
    assert not (tmp_path / "first2").exists()
    assert not ended.exists()
    assert not never.exists()
    assert [entry.state for entry in journal.entries] == ["done", "undone", "undone"]


def test_ctrl_c_in_the_last_step_leaves_a_whole_fix(apply, journal, tmp_path):
    log = tmp_path / "log"
    reload = Step(run=["sh", "-c", f"echo reload >> {log}"])
    reload = structs.replace(reload, undo=reload.run)
    said = apply(risky("none", sh(f"kill -INT {os.getpid()}; echo own >> {log}"), reload))
    assert log.read_text().split() == ["own", "reload"]
    assert "stopped" in said


def reload_into(log, line="echo reload"):
    step = Step(run=["sh", "-c", f"{line} >> {log}"])
    return structs.replace(step, undo=step.run)


def test_killed_before_the_reload_the_way_back_still_ends_with_it(journal, tmp_path):
    log, path = tmp_path / "log", tmp_path / "x"
    steps = [Step(write=str(path), content="x"), reload_into(log)]
    Applier(journal, lambda _: None).take(*plan([risky("none", *steps)]))
    assert not log.exists()
    assert undo(journal)[0]
    assert not path.exists()
    assert log.read_text() == "reload\n"


def test_a_reload_that_failed_is_made_again_when_the_files_are_back(apply, journal, tmp_path):
    log, path = tmp_path / "log", tmp_path / "x"
    reload = reload_into(log, f"test ! -e {path} && echo reload")
    assert "FAILED" in apply(risky("none", Step(write=str(path), content="x"), reload))
    assert undo(journal)[0]
    assert log.read_text() == "reload\n"


def test_what_only_fixes_that_failed_would_need_is_not_done(apply, journal, tmp_path):
    log = tmp_path / "log"
    apply(risky("none", sh("false"), reload_into(log)))
    assert undo(journal)[0]
    assert not log.exists()


def test_a_link_stays_one_on_both_ways(apply, journal, tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    link.symlink_to("real")
    apply(risky("none", Step(write=str(link), content="after")))
    assert real.read_text() == "after"
    assert undo(journal)[0]
    assert link.is_symlink()
    assert real.read_text() == "before"


def test_without_a_journal_nothing_is_done(apply, journal, tmp_path):
    journal.path.parent.write_text("in the way of the directory")
    mark = tmp_path / "mark"
    said = apply(risky("none", sh(f"touch {mark}"), reload_into(mark)))
    assert "FAILED: the journal" in said
    assert not mark.exists()
    with pytest.raises(StepFailed, match="no journal can be kept in"), alone(journal.path.parent):
        pass


def test_one_at_a_time(tmp_path):
    with alone(tmp_path), pytest.raises(StepFailed, match="at work on fixes"), alone(tmp_path):
        pass


def test_who_needs_root(tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.access", lambda path, mode: str(path).startswith(str(tmp_path)))
    assert not needs_root(Step(write=str(tmp_path / "a/b"), content=""))
    assert needs_root(Step(write="/etc/x", content=""))
    assert needs_root(Step(run=["systemctl", "restart", "x"]))
    assert not needs_root(Step(run=["systemctl", "--user", "restart", "x"]))
    assert not needs_root(Step(run=["mv", str(tmp_path / "a"), str(tmp_path / "b")]))
    assert needs_root(Step(run=["mv", str(tmp_path / "a"), "/var/x"]))


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), ("[", "not a journal"), ("schema: 1", "not a journal")],
)
def test_a_bad_journal_is_named(tmp_path, content, says):
    path = tmp_path / "j.yaml"
    if content:
        path.write_text(content)
    with pytest.raises(JournalError, match=rf"j\.yaml: .*{says}"):
        Journal.load(path)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--apply", "--snapshot", "x"], "cannot go with --snapshot"),
        (["--yes"], "no effect without --apply"),
        (["--apply"], "add --yes"),
        (["--undo", "/no/such"], "/no/such: No such file"),
        (["--undo", "x", "--apply"], "goes alone"),
    ],
)
def test_wrong_usage(doctor, args, says):
    done = doctor("fix", *args)
    assert (done.returncode, done.stdout) == (64, "")
    assert says in " ".join(done.stderr.split())


def test_a_host_that_is_a_directory_is_not_changed(doctor, tmp_path):
    for args in (["--apply", "--yes"], ["--undo", "x"]):
        done = doctor("fix", *args, VOLTA_DOCTOR_SYSROOT=str(tmp_path))
        assert (done.returncode, done.stdout) == (64, "")
        assert "VOLTA_DOCTOR_SYSROOT" in done.stderr


def test_the_plan_of_a_snapshot(doctor, saved):
    off = {"nvml": {"gpus": {0: {"compute_mode": "exclusive_process"}}}}
    done = doctor("fix", "--snapshot", saved(off), "--select", "compute-mode,iommu")
    assert (done.returncode, done.stderr) == (1, "")
    assert "warnings; 1 to fix, 1 of them by fix --apply" in " ".join(done.stdout.split())
    assert "$ nvidia-smi -i GPU-00000000-0000-0000-0000-000000000000 -c 0\n" in done.stdout
    fine = doctor("fix", "--snapshot", saved({}), "--select", "compute-mode")
    assert fine.returncode == 0
    assert "healthy; nothing to fix" in fine.stdout


def test_apply_looks_again_and_says_what_is_mended(monkeypatch, tmp_path, snapshot_with):
    from click.testing import CliRunner

    from volta_doctor.cli import cli
    from volta_doctor.cli.looking import Look
    from volta_doctor.report import build

    snapshot, mark = snapshot_with({}), tmp_path / "mark"

    def look(_scope):
        step = Step(write=str(mark), content="x")
        found = ROWS["iommu"].ok("o") if mark.exists() else risky("none", step)
        return Look(snapshot, build(snapshot, detect(snapshot.facts), [found]))

    monkeypatch.setattr("volta_doctor.cli.looking.look", look)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = CliRunner().invoke(cli, ["fix", "--apply", "--yes"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert mark.exists()
    assert "mended: iommu: warn -> ok: o\nhealthy (before: warnings)\n" in done.output
    (path,) = (tmp_path / "state/volta-doctor/fixes").iterdir()
    assert f"take it back: volta-doctor fix --undo {path}" in done.output
    other = CliRunner().invoke(cli, ["fix", "--undo", str(path)], standalone_mode=False)
    assert "is of the host gpu1" in str(other.exception.message)
    path.write_text(path.read_text().replace("host: gpu1", "host: ''"))
    back = CliRunner().invoke(cli, ["fix", "--undo", str(path)], standalone_mode=False)
    assert back.exception is None
    assert not mark.exists()


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
