"""What the verbs share: choosing checks, waivers, earlier snapshots, and where output goes."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from volta_doctor import catalog, redact
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import decode, encode

ROWS = catalog.checks()


def judged(done):
    return {finding["id"] for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--select", "iommu,smi-hang"], {"iommu", "smi-hang"}),
        (["--select", "iommu", "--select", "smi-hang"], {"iommu", "smi-hang"}),
        (["--select", "mode"], {r.id for r in ROWS.values() if r.area == "mode"}),
        (["--select", "mode,iommu", "--ignore", "mps"], {"persistence", "compute-mode", "iommu"}),
        (["--ignore", ",".join(a for a in catalog.AREAS if a != "mode")], None),
    ],
)
def test_which_checks_are_made(doctor, saved, options, ids):
    done = doctor("check", "--format", "json", "--snapshot", saved({}), *options)
    assert judged(done) == (ids or {r.id for r in ROWS.values() if r.area == "mode"})


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--select", "memry"], "no check or area 'memry'; did you mean memory?"),
        (["--ignore", "nvl-crcs"], "--ignore: no check or area 'nvl-crcs'; did you mean nvl-crc"),
        (["--select", "zzzz"], "volta-doctor list shows all"),
        (["--select", "mps", "--ignore", "mode"], "leaves no check"),
        (["--snapshot", "x", "--active"], "--active has no effect with --snapshot"),
        (["--format", "xml"], "no format 'xml'; there are table, json"),
        (["--waivers", "/no/such"], "/no/such: No such file"),
        (["--since", "/dev/null"], "/dev/null: not a snapshot"),
    ],
)
def test_wrong_usage_is_64(doctor, args, says):
    done = doctor("check", *args)
    assert (done.returncode, done.stdout) == (64, "")
    assert says in " ".join(done.stderr.split())


def test_a_waived_problem_changes_the_exit_code_and_stays_in_sight(doctor, saved, tmp_path):
    snapshot = saved({"host": {"cmdline": "intel_iommu=on"}})
    waivers = tmp_path / "w.yaml"
    waivers.write_text("- {id: iommu, reason: the card of a VM, expires: 2026-11-30, by: me}\n")
    args = ("check", "--snapshot", snapshot, "--select", "iommu")
    assert doctor(*args).returncode == 1
    done = doctor(*args, "--waivers", str(waivers))
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "WAIVED iommu" in text
    assert "warn, waived by me until 2026-11-30: the card of a VM" in text
    report = json.loads(doctor(*args, "--waivers", str(waivers), "--format", "json").stdout)
    assert report["summary"]["waived"] == 1
    waivers.write_text("- {id: iommu, reason: the card of a VM, expires: 2026-11-29}\n")
    late = doctor(*args, "--waivers", str(waivers))
    assert late.returncode == 1
    assert "expired on 2026-11-29: the card of a VM" in " ".join(late.stdout.split())
    waivers.write_text("- {id: iommu, expires: 2026-11-30}\n")
    bad = doctor(*args, "--waivers", str(waivers))
    assert (bad.returncode, bad.stdout) == (64, "")
    assert f"{waivers}, line 1: waiver iommu: Object missing required field `reason`" in bad.stderr


def test_a_live_look_takes_the_users_waivers_and_a_snapshot_does_not(doctor, saved, tmp_path):
    mine = tmp_path / "config/volta-doctor/waivers.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("nonsense")
    live = doctor("check", "--select", "iommu")
    assert live.returncode == 64
    assert str(mine) in live.stderr
    assert doctor("check", "--select", "iommu", "--snapshot", saved({})).returncode == 0


def test_since_counts_from_an_earlier_snapshot(doctor, saved, snapshot_with, tmp_path):
    def errors(count, time):
        ecc = {"volatile_corrected": count}
        return {"host": {"time": time}, "nvml": {"gpus": {0: {"ecc": ecc}}}}

    args = ("check", "--snapshot", saved(errors(100, 1796040000)), "--select", "ecc-sbe", "--since")
    for before, code in ((0, 1), (100, 0)):
        old = tmp_path / "old.json"
        old.write_bytes(encode(snapshot_with(errors(before, 1796039000))))
        assert doctor(*args, str(old)).returncode == code


def test_a_report_in_a_file_is_whole(doctor, saved, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    target = out / "report.json"
    args = ("check", "--snapshot", saved({}), "--select", "iommu", "--format", "json")
    done = doctor(*args, "-o", str(target))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(target.read_text())["summary"]["verdict"] == "healthy"
    assert target.read_text().endswith("}\n")
    assert list(out.iterdir()) == [target]
    assert doctor(*args, "-o", "/dev/full").returncode == 64
    assert doctor(*args, "-o", "/no/such/file").returncode == 64
    assert doctor(*args, "-o", "-").stdout == target.read_text()


def test_snapshots_come_from_stdin_too(repo, saved):
    env = {**os.environ, "PYTHONPATH": str(repo / "doctor")}
    command = [sys.executable, "-m", "volta_doctor"]
    with Path(saved({"smi": {"exit_code": 8}})).open("rb") as file:
        done = subprocess.run(
            [*command, "check", "--select", "smi-rc", "--snapshot", "-"],
            stdin=file,
            capture_output=True,
            env=env,
        )
    assert done.returncode == 2


def test_a_snapshot_of_a_snapshot_is_redacted(doctor, saved, tmp_path):
    whole, out = saved({"host": {"hostname": "rack7"}}), tmp_path / "redacted.json"
    done = doctor("snapshot", "--from", whole, "--redact", "-o", str(out))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "rack7" not in out.read_text()
    assert decode(out.read_bytes()).redacted
    one, two = (doctor("check", "--format", "json", "--snapshot", p) for p in (whole, str(out)))
    assert json.loads(one.stdout)["summary"] == json.loads(two.stdout)["summary"]
    assert doctor("snapshot", "--from", whole, "--root", "/x", "-o", "-").returncode == 64


def test_a_name_that_checks_go_by_is_told(doctor, saved, tmp_path):
    path = saved(
        {
            "host": {"hostname": "NVRM"},
            "kernel_log": {
                "lines": {
                    3: {
                        "time": 9.0,
                        "text": "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
                    }
                }
            },
        }
    )
    done = doctor("snapshot", "--from", path, "--redact", "-o", str(tmp_path / "r.json"))
    assert "redacting changes the verdict of: " in done.stderr
    assert "xid-fatal" in done.stderr


@pytest.mark.skipif(
    len(os.uname().nodename) < redact._SHORTEST,
    reason="the host's name is too short to be told from other words",
)
def test_this_host_redacted_has_no_name_of_it(doctor, tmp_path):
    done = doctor("snapshot", "--redact", "-o", "-", "--root", str(tmp_path))
    host = os.uname().nodename
    assert done.returncode == 0
    assert not re.search(rf"(?<!\w){re.escape(host)}(?!\w)", done.stdout)


@pytest.mark.parametrize("check_id", ROWS)
def test_explain_tells_the_whole_row(check_id):
    from click.testing import CliRunner

    from volta_doctor.cli import cli

    done = CliRunner().invoke(cli, ["explain", check_id], env={"COLUMNS": "400"})
    row = ROWS[check_id]
    text = " ".join(done.output.split())
    for part in (row.title, row.fix, row.source, row.volta_note, *row.rule.values(), *row.hides):
        assert " ".join(part.split()) in text
    assert done.output.isascii() == all(part.isascii() for part in (row.title, row.fix, row.source))


def test_explain_tells_what_hides_it(doctor):
    text = " ".join(doctor("explain", "smi-rc").stdout.split())
    assert "hidden by" in text
    assert "driver-loaded" in text
    wrong = doctor("explain", "driver-loded")
    assert wrong.returncode == 64
    assert "did you mean driver-loaded" in wrong.stderr


def test_list(doctor):
    lines = doctor("list").stdout.splitlines()
    listed = json.loads(doctor("list", "--format", "json").stdout)["checks"]
    headings = [line for line in lines if line[0] != " "]
    for verb, rows in (("check", ROWS), ("model", model_checks())):
        areas = dict.fromkeys(row.area for row in rows.values())
        told = [f"{area} (volta-doctor {verb}):" for area in areas]
        assert [line for line in headings if line.endswith(f" {verb}):")] == told
        assert [row["id"] for row in listed if row["scope"] == verb] == list(rows)
    assert listed[0]["levels"] == list(ROWS[listed[0]["id"]].rule)


def test_progress_is_for_a_terminal_and_gone_afterwards(repo, tmp_path):
    main, side = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(repo / "doctor"), "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "volta_doctor", "check", "--select", "iommu"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=side, env=env, timeout=60)
    os.close(side)
    seen = b""
    while select.select([main], [], [], 0.2)[0]:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # the terminal's other end is closed
            break
        seen += chunk
    os.close(main)
    assert b"looking: " in seen
    assert b"host" in seen
    assert seen.endswith(b"\r\x1b[K")
    assert b"looking" not in done.stdout


def test_what_cannot_be_remembered_is_told_to_who_asks(monkeypatch, tmp_path):
    from click.testing import CliRunner

    from volta_doctor.cli import cli

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("volta_doctor.facts.history.remember", lambda *_: "no room")
    args = ["check", "--select", "iommu"]
    assert CliRunner().invoke(cli, args).stderr == ""
    told = CliRunner().invoke(cli, [*args, "-v"]).stderr
    assert told == "not remembered for the next look: no room\n"


@pytest.mark.parametrize("args", ["check", "check -v", "check --format markdown", "fix", "diff"])
def test_what_a_log_holds_gives_the_terminal_no_orders(doctor, saved, args, tmp_path, healthy):
    text = "NVRM: Xid (PCI:0000:1a:00): 79, name=\x1b]0;x\x07\x1b[2J\x9b, GPU has fallen off"
    path = saved({"kernel_log": {"lines": {3: {"time": 9.0, "text": text}}}})
    (tmp_path / "old.json").write_bytes(healthy)
    files = [str(tmp_path / "old.json"), path] if args == "diff" else ["--snapshot", path]
    done = doctor(*args.split(), *files)
    assert "xid" in done.stdout
    assert not {*"\x1b\x07\x9b"} & {*done.stdout}
