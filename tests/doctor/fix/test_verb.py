"""The verb: wrong usage, the plan of a snapshot, applying and taking back."""

import pytest

from volta_doctor.catalog import checks
from volta_doctor.findings import Step
from volta_doctor.profile import detect

ROWS = checks()


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


def test_apply_looks_again_and_says_what_is_mended(monkeypatch, tmp_path, snapshot_with, risky):
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
