"""The doctor's timer: its unit is confined, and a report that tells nothing is refused."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jinja2
import pytest
import yaml

REPO = Path(__file__).parents[2]
ROLE = REPO / "playbooks/roles/monitoring"
REPORT = "volta_doctor.prom"
RUN = "volta_doctor_last_run_timestamp_seconds"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of the doctor on the machine that runs the tests."""
    file = tmp_path_factory.mktemp("report") / REPORT
    doctor = [sys.executable, "-m", "volta_doctor", "check", "--format=prometheus", f"-o{file}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(file.parent)}
    assert subprocess.run(doctor, env=environment, check=False).returncode < 64
    return file.read_text()


@pytest.fixture(scope="module")
def verdicts(report, tmp_path_factory):
    """What the role says of reports, each on a host of its own: its message, or nothing."""
    lines = report.splitlines()
    undated = [line for line in lines if not line.startswith(f"{RUN} ")]
    reports = {
        "fresh": report,
        "old": "\n".join([*undated, f"{RUN} {time.time() - 700:.0f}"]),
        "cut": report + 'volta_doctor_check{id="ecc',
        "undated": "\n".join(undated),
        "missing": None,
    }
    root = tmp_path_factory.mktemp("hosts")
    for name, text in reports.items():
        (root / name).mkdir()
        if text is not None:
            (root / name / REPORT).write_text(text)
    verify = {"name": "monitoring", "tasks_from": "verify.yml"}
    keep = {
        "dest": "{{ monitoring_textfile_dir }}/said",
        "content": "{{ ansible_failed_result.msg }}",
        "mode": "0644",
    }
    task = {
        "block": [{"ansible.builtin.import_role": verify}],
        "rescue": [{"ansible.builtin.copy": keep}],
    }
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {name: {**local, "monitoring_textfile_dir": str(root / name)} for name in reports}
    play = [{"hosts": "all", "gather_facts": False, "tasks": [task]}]
    (root / "play.yml").write_text(yaml.safe_dump(play))
    (root / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    playbook = Path(sys.executable).with_name("ansible-playbook")
    settings = {
        "HOME": str(root / "ansible"),
        "REMOTE_TMP": str(root / "tmp"),
        "ROLES_PATH": str(ROLE.parent),
    }
    subprocess.run(
        [playbook, "play.yml", "--inventory=hosts.yml"],
        cwd=root,
        env=os.environ | {f"ANSIBLE_{name}": value for name, value in settings.items()},
        check=True,
    )
    files = {name: root / name / "said" for name in reports}
    return {name: file.read_text() if file.exists() else "" for name, file in files.items()}


def test_a_fresh_report_of_the_doctor_is_taken(verdicts):
    assert verdicts["fresh"] == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("old", "s old, and due every 300 s"),
        ("cut", 'first wrong line: volta_doctor_check{id="ecc'),
        ("undated", "does not say when"),
        ("missing", "No such file"),
    ],
)
def test_what_is_wrong_with_a_report_is_said_with_its_file(verdicts, name, words):
    assert words in verdicts[name]
    assert f"{name}/{REPORT}" in verdicts[name]
    assert "systemctl status volta-doctor.timer" in verdicts[name]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize(
    ("unit", "most"),
    [("volta-doctor.service", 3.6), ("dcgm-exporter.conf", 2.4)],
)
def test_units_are_confined(unit, most, tmp_path):
    """By systemd's own measure, 0 (no power) to 10 (root's); `most` is what they have today."""
    host = {"root": "/opt/volta"}
    values = yaml.safe_load((ROLE / "defaults/main.yml").read_text()) | {"preflight_host": host}
    text = jinja2.Template((ROLE / f"templates/{unit}.j2").read_text()).render(values)
    file = tmp_path / "unit.service"
    file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={most * 10:.0f}", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
