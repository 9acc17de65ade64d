"""The steps that are taken, and the way back from each of them."""

import os
import stat

import pytest
from msgspec import structs

from volta_doctor.apply import Applier, alone, needs_root, run, split
from volta_doctor.findings import Step
from volta_doctor.fix import plan
from volta_doctor.journal import Journal, JournalError, StepFailed


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


def reload_into(log, line="echo reload"):
    step = Step(run=["sh", "-c", f"{line} >> {log}"])
    return structs.replace(step, undo=step.run)


def test_a_file_is_written_and_put_back(apply, journal, tmp_path, risky):
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


def test_a_file_that_somebody_changed_since_is_left_alone(apply, journal, tmp_path, risky):
    path = tmp_path / "x"
    path.write_text("before")
    apply(risky("none", Step(write=str(path), content="after")))
    path.write_text("mine")
    whole, said = undo(journal)
    assert not whole
    assert f"{path} has changed since" in said
    assert path.read_text() == "mine"


def test_a_failed_step_ends_its_fix_and_tells_the_way_back(apply, journal, tmp_path, risky, sh):
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


def test_a_command_that_is_not_there_is_a_failed_step(apply, risky):
    assert "FAILED: /no/such: /no/such: No such file" in apply(
        risky("none", Step(run=["/no/such"]))
    )


def test_reloads_are_done_once_after_all_files_and_again_on_the_way_back(
    apply, journal, tmp_path, risky
):
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


def test_only_what_ends_a_fix_is_put_off(sh):
    again = Step(run=["reload"], undo=["reload"])
    own, owed = split([sh("a"), again, sh("b"), again, again])
    assert (own, owed) == ([sh("a"), again, sh("b")], [again, again])


def test_the_way_back_is_from_the_last_to_the_first(apply, journal, tmp_path, risky, sh):
    log = tmp_path / "log"
    apply(risky("none", *[sh("true", f"echo {n} >> {log}") for n in (1, 2, 3)]))
    assert undo(journal)[0]
    assert log.read_text().split() == ["3", "2", "1"]


def test_a_step_of_two_fixes_is_taken_once(apply, tmp_path, risky, sh):
    log = tmp_path / "log"
    once = sh(f"echo x >> {log}")
    said = apply(risky("none", once), risky("none", once, check_id="acs"))
    assert log.read_text() == "x\n"
    assert "done already" in said


@pytest.mark.parametrize("how", ["INT", "TERM", "HUP"])
def test_ctrl_c_lets_the_step_end_and_takes_its_fix_back(apply, journal, tmp_path, how, risky, sh):
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


def test_ctrl_c_in_the_last_step_leaves_a_whole_fix(apply, journal, tmp_path, risky, sh):
    log = tmp_path / "log"
    own = sh(f"kill -INT {os.getpid()}; echo own >> {log}")
    said = apply(risky("none", own, reload_into(log)))
    assert log.read_text().split() == ["own", "reload"]
    assert "stopped" in said


def test_killed_before_the_reload_the_way_back_still_ends_with_it(journal, tmp_path, risky):
    log, path = tmp_path / "log", tmp_path / "x"
    steps = [Step(write=str(path), content="x"), reload_into(log)]
    Applier(journal, lambda _: None).take(*plan([risky("none", *steps)]))
    assert not log.exists()
    assert undo(journal)[0]
    assert not path.exists()
    assert log.read_text() == "reload\n"


def test_a_reload_that_failed_is_made_again_when_the_files_are_back(
    apply, journal, tmp_path, risky
):
    log, path = tmp_path / "log", tmp_path / "x"
    reload = reload_into(log, f"test ! -e {path} && echo reload")
    assert "FAILED" in apply(risky("none", Step(write=str(path), content="x"), reload))
    assert undo(journal)[0]
    assert log.read_text() == "reload\n"


def test_what_only_fixes_that_failed_would_need_is_not_done(apply, journal, tmp_path, risky, sh):
    log = tmp_path / "log"
    apply(risky("none", sh("false"), reload_into(log)))
    assert undo(journal)[0]
    assert not log.exists()


def test_a_link_stays_one_on_both_ways(apply, journal, tmp_path, risky):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    link.symlink_to("real")
    apply(risky("none", Step(write=str(link), content="after")))
    assert real.read_text() == "after"
    assert undo(journal)[0]
    assert link.is_symlink()
    assert real.read_text() == "before"


def test_without_a_journal_nothing_is_done(apply, journal, tmp_path, risky, sh):
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
