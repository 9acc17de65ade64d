"""What volta_gpu reads and sets: real pynvml on hosts with fake V100s."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pynvml
import pytest
import yaml

REPO = Path(__file__).parents[2]
MODULE = REPO / "provision/volta_provision/modules/volta_gpu.py"
# As Ansible starts a module: the arguments are there already.
START = """
import json, runpy, sys
from ansible.module_utils import basic
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.loads(sys.argv[2])}).encode()
basic._ANSIBLE_PROFILE = "legacy"
runpy.run_path(sys.argv[1], run_name="__main__")
"""
WANTED = {
    "persistence": "enabled",
    "compute_mode": "default",
    "ecc": "auto",
    "power_limit": "default",
    "application_clocks": "highest",
    "accounting": "enabled",
}


@pytest.fixture(scope="module")
def fakegpu():
    import fakegpu

    return fakegpu


@pytest.fixture(scope="module")
def library(fakegpu, tmp_path_factory):
    directory = tmp_path_factory.mktemp("library")
    fakegpu.build(directory)
    return directory


class Host:
    """A host that is a state and a library."""

    def __init__(self, fakegpu, library, state):
        self.fakegpu, self.state = fakegpu, state
        self.env = fakegpu.environment(library, state)

    def run(self, check=False, **options):
        """Run the module; returns its result."""
        arguments = {"pynvml": pynvml.__file__, "_ansible_check_mode": check, **options}
        command = [sys.executable, "-c", START, str(MODULE), json.dumps(arguments)]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def fails(self, **options):
        """Run the module, which must fail and set nothing; returns what it says."""
        before = self.state.read_text()
        result = self.run(**options)
        assert result["failed"]
        assert self.state.read_text() == before
        return result["msg"]

    def reboot(self):
        self.fakegpu.reboot(self.state)


@pytest.fixture
def host(fakegpu, library, tmp_path):
    """host(snapshot, what stands in the state by path)."""

    def make(snapshot="v100-sxm2-16gb-x2", **values):
        state = tmp_path / "state"
        fakegpu.write_state(state, fakegpu.load(snapshot))
        lines = {re.split("[=!]", line)[0]: line for line in state.read_text().splitlines()}
        lines |= {path: f"{path}{value}" for path, value in values.items()}
        state.write_text("\n".join(lines.values()) + "\n")
        return Host(fakegpu, library, state)

    return make


def test_what_differs_is_set_once(host):
    machine = host()
    first = machine.run(**WANTED)
    assert first["changed"]
    for gpu in first["gpus"]:
        assert (gpu["persistence"], gpu["accounting"]) == ("enabled", "enabled")
        assert gpu["application_clocks"] == gpu["clocks"]["highest"] == "877,1530"
        assert gpu["volatile"] == {
            "persistence": "enabled",
            "accounting": "enabled",
            "application_clocks": "877,1530",
        }
    again = machine.run(**WANTED)
    assert (again["changed"], again["diff"], again["gpus"]) == (False, [], first["gpus"])
    assert not machine.run(**WANTED, verify=True)["changed"]


def test_a_check_tells_exactly_the_drift_and_sets_nothing(host):
    machine = host()
    machine.run(**WANTED)
    machine.run(gpus=["1"], compute_mode="prohibited", power_limit="200")
    before = machine.state.read_text()
    result = machine.run(check=True, **WANTED)
    assert machine.state.read_text() == before
    assert result["changed"]
    (diff,) = result["diff"]
    assert diff["before_header"].startswith("GPU 1 (0000:")
    assert diff["before"] == "compute_mode: prohibited\npower_limit: 200\n"
    assert diff["after"] == "compute_mode: default\npower_limit: 300\n"


def test_ecc_waits_for_a_reboot_whoever_set_it(host):
    machine = host(**{f"gpus.0.ecc.{when}": "=0" for when in ("current", "pending")})
    foretold = machine.run(check=True, ecc="auto")
    assert foretold["reboot_required"]
    done = machine.run(ecc="enabled")
    assert done["changed"]
    (reason,) = done["reboot_reasons"]
    assert reason.endswith("ECC is disabled and will be enabled")
    assert foretold["reboot_reasons"] == [reason]
    again = machine.run(ecc="enabled")
    assert (again["changed"], again["reboot_reasons"]) == (False, [reason])
    assert machine.run()["reboot_reasons"] == [reason]
    assert machine.fails(ecc="enabled", verify=True) == f"{reason}: reboot."
    machine.reboot()
    assert not machine.run(ecc="enabled", verify=True)["reboot_required"]


def test_what_is_taken_back_needs_no_reboot(host):
    machine = host("ecc-pending")
    assert machine.run()["reboot_required"]
    done = machine.run(ecc="auto")
    assert (done["changed"], done["reboot_required"]) == (True, False)


def test_retired_pages_wait_for_a_reboot(host):
    machine = host(**{"gpus.1.retired_pages.pending": "=1"})
    (reason,) = machine.run()["reboot_reasons"]
    assert "GPU 1" in reason
    assert "retired pages" in reason


@pytest.mark.parametrize("which", ["index", "uuid", "address"])
def test_a_gpu_is_chosen_by_any_of_its_names(host, which):
    machine = host()
    name = str(machine.run()["gpus"][1][which])
    machine.run(gpus=[name.upper()], power_limit="250")
    assert [gpu["power_limit"] for gpu in machine.run()["gpus"]] == ["300", "250"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": ["0", "7"]}, "No GPU here is 7. Here are 0: 0000:"),
        ({"power_limit": "301"}, "power_limit 301 W is out of range: it takes 150 to 300 W"),
        ({"power_limit": "much"}, "it must be in watts, default or keep"),
        ({"application_clocks": "877,1531"}, "takes 187 from 135 to 1530 MHz, the nearest 1522"),
        ({"application_clocks": "900,1530"}, "memory clock 900 MHz; it takes 877 MHz"),
        ({"application_clocks": "fast"}, "must be memory,graphics in MHz"),
    ],
)
def test_what_a_card_cannot_be_is_said_before_anything_is_set(host, options, said):
    assert said in host().fails(**{**WANTED, **options})


def test_one_card_that_cannot_keeps_all_as_they_are(host):
    machine = host(**{"gpus.1.power.max_mw": "=250000"})
    said = machine.fails(**{**WANTED, "power_limit": "300"})
    assert "GPU 1" in said
    assert "GPU 0" not in said


def test_what_a_card_lacks_is_said_and_fails_only_where_it_was_asked_for(host):
    absent = ("ecc.current", "ecc.pending", "power.limit_mw", "application_clocks.graphics")
    machine = host(**{f"gpus.0.{path}": "!3" for path in absent})
    done = machine.run(**WANTED)
    assert len(done["notes"]) == 3
    assert all(note.startswith("GPU 0") for note in done["notes"])
    assert not done["reboot_required"]
    assert "GPU 0" in machine.fails(ecc="enabled")
    assert "no power limit to set, and 250 was asked for" in machine.fails(power_limit="250")
    assert machine.run(gpus=["1"], ecc="enabled")["notes"] == []


def test_what_computes_is_named(host):
    pid = os.getpid()
    machine = host(
        **{"gpus.1.compute_processes": "=1", "gpus.1.compute_processes.0.pid": f"={pid}"}
    )
    (process,) = machine.run()["gpus"][1]["processes"]
    assert process["pid"] == pid
    assert process["text"].startswith("GPU 1 (0000:")
    assert f"{process['name']} (pid {pid}" in process["text"]
    assert process["name"] == Path("/proc/self/comm").read_text().strip()


def test_a_lost_gpu_is_named_with_the_remedy(host):
    machine = host("gpu-lost")
    said = machine.fails(**WANTED)
    assert said.startswith("GPU 3 is lost: it does not answer on the bus.")
    assert "power it off and on" in said
    assert machine.run(gpus=["2"], accounting="enabled")["changed"]
    assert "GPU 3 is lost" in machine.fails(gpus=["3"])
    machine = host(**{"gpus.1.persistence": "!15"})
    assert "GPU 1 (0000:" in machine.fails(**WANTED)


@pytest.mark.parametrize(
    ("code", "said"), [(16, "needs a reset, says NVML"), (999, "does not answer: Unknown Error")]
)
def test_a_gpu_in_another_trouble_is_named_too(host, code, said):
    assert said in host(**{"gpus.1.handle_error": f"!{code}"}).fails(**WANTED)
    assert f"GPU 1 (0000:1b:00.0) {said}" in host(**{"gpus.1.persistence": f"!{code}"}).fails()


def test_a_driver_that_hangs_is_given_up(host):
    assert "NVML has not answered for 1 s" in host(fault="=hang").fails(timeout=1, **WANTED)


def test_without_permission_it_says_so(host):
    machine = host(set_error="!4")
    assert "No permission to set accounting to enabled on GPU 0" in machine.fails(**WANTED)
    assert not machine.run(compute_mode="default")["changed"]


def test_who_is_in_the_way_is_named(host):
    pid = os.getpid()
    busy = {"gpus.0.compute_processes": "=1", "gpus.0.compute_processes.0.pid": f"={pid}"}
    said = host(set_error="!19", **busy).fails(**WANTED)
    assert "in use, and cannot be set (accounting to enabled)" in said
    assert f"(pid {pid}" in said


def test_the_kernel_s_last_word_on_a_lost_gpu_is_told(host, tmp_path):
    dmesg = tmp_path / "dmesg"
    dmesg.write_text(
        "#!/bin/sh\necho 'NVRM: Xid (PCI:0000:1b:00): 31, x'\n"
        "echo 'NVRM: Xid (PCI:0000:1b:00): 79, pid=0, GPU has fallen off the bus.'\n"
        "echo 'NVRM: Xid (PCI:0000:1a:00): 13, x'\n"
    )
    dmesg.chmod(0o755)
    machine = host(**{"gpus.1.persistence": "!15"})
    machine.env["PATH"] = f"{tmp_path}:{machine.env['PATH']}"
    assert "GPU 1 (0000:1b:00.0) is lost" in machine.fails()
    assert "The kernel's last word on it is Xid 79. Drain" in machine.fails()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"init_error": "!9"}, "module is not loaded"),
        ({"init_error": "!18"}, "(NVML 13.580.95.05) and its loaded module"),
    ],
)
def test_a_check_does_not_mind_what_a_run_has_still_to_do(host, values, said):
    machine = host(**values)
    assert said in machine.fails(**WANTED)
    result = machine.run(check=True, **WANTED)
    assert (result["changed"], result["available"]) == (True, False)
    assert "ecc: auto\n" in result["diff"]["after"]
    assert said in result["msg"]
    assert said in machine.fails(check=True, verify=True)


def test_without_a_library_or_a_binding_it_says_which(host, tmp_path):
    machine = host()
    assert "gpu_mode, which puts it there" in machine.fails(pynvml=str(tmp_path / "pynvml.py"))
    broken = tmp_path / "none"
    broken.mkdir()
    (broken / "libnvidia-ml.so.1").touch()
    machine.env["LD_LIBRARY_PATH"] = str(broken)
    assert "install the driver" in machine.fails(ecc="auto")


def test_the_doctor_is_content_with_what_the_role_asks_for(fakegpu, library, tmp_path):
    drift = {"persistence": False, "compute_mode": "prohibited"}
    fake = fakegpu.load("v100-sxm2-16gb-x2")
    for gpu in fake.nvml["gpus"]:
        gpu |= drift | {"ecc": gpu["ecc"] | {"current": False, "pending": False}}
        gpu["power"] |= {"limit_mw": 200000, "enforced_mw": 200000}
    env = fakegpu.host_environment(tmp_path, fake, library / "libnvidia-ml.so.1")
    machine = Host(fakegpu, library, tmp_path / "state")
    asked = ("persistence", "compute-mode", "ecc-mode", "power-limit", "app-clocks")

    def bad():
        command = [sys.executable, "-m", "volta_doctor", "check", "--format", "json"]
        env["PYTHONPATH"] = str(REPO / "doctor")
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        findings = json.loads(done.stdout)["findings"]
        assert {finding["id"] for finding in findings} >= set(asked), done.stderr
        return {f["id"] for f in findings if f["id"] in asked and f["status"] != "ok"}

    assert bad() == set(asked)
    assert machine.run(**WANTED)["reboot_required"]
    machine.reboot()
    machine.run(**WANTED)
    assert bad() == set()


@pytest.fixture
def unit(tmp_path):
    """unit(result of the module): the file of the unit that the role renders from it."""

    def render(result):
        words = yaml.safe_load((REPO / "playbooks/roles/gpu_mode/vars/main.yml").read_text())
        source = (REPO / "templates/volta-gpu-mode.service.j2").read_text()
        template = jinja2.Template(source, trim_blocks=True, undefined=jinja2.StrictUndefined)
        file = tmp_path / "volta-gpu-mode.service"
        file.write_text(template.render(words, gpu_mode_set=result))
        return file

    return render


def test_the_unit_sets_again_what_a_boot_loses(host, unit):
    wanted = WANTED | {"compute_mode": "exclusive_process", "power_limit": "250"}
    commands = re.findall(r"^ExecStart=(.+)", unit(host().run(**wanted)).read_text(), re.MULTILINE)
    assert commands == ["/usr/bin/nvidia-modprobe -u -c0"] + [
        f"-/usr/bin/nvidia-smi -i 0000:{bus}:00.0 {setting}"
        for bus in ("1a", "1b")
        for setting in ("-pm 1", "-c 3", "-am 1", "-pl 250", "-ac 877,1530")
    ]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_unit_is_confined(host, unit):
    """By systemd's own measure, from 0 (no power) to 10 (root's)."""
    file = unit(host().run(**WANTED))
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=24", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_binding_is_one_file(host, tmp_path):
    shutil.copy(pynvml.__file__, tmp_path / "pynvml.py")
    assert host().run(pynvml=str(tmp_path / "pynvml.py"))["available"]
