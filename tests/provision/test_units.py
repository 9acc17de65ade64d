"""The server's unit as it is rendered for each manager and release."""

import shutil
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

REPO = Path(__file__).parents[2]
ROLE = REPO / "playbooks/roles/service"


@pytest.fixture
def unit():
    """Return a function that renders the unit as Ansible would, from the role's own variables."""
    settings = {
        **yaml.safe_load((ROLE / "defaults/main.yml").read_text()),
        **yaml.safe_load((ROLE / "vars/main.yml").read_text()),
    }
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)

    def render(manager="systemd", cuda=False, cards=False, key=""):
        uid = 0 if manager == "systemd" else 1000
        given = {
            "preflight_host": {
                "manager": manager,
                "root": "/opt/volta" if uid == 0 else "/home/ada/.local/share/volta",
                "home": "/home/ada",
                "uid": uid,
            },
            "preflight_bundle": {
                "lock": {"kernels": {"cuda": cuda}, "memory_gib": {"high": 6, "max": 8}}
            },
            "preflight_gpu_host": cards,
            "service_api_key_file": key,
        }
        known = {**settings, **given}

        def value(name):
            text = known[name]
            return environment.from_string(text).render(known) if isinstance(text, str) else text

        for name in ("service_scope", "service_config", "service_key", "service_key_shown"):
            known[name] = value(name)
        known["service_key_option"] = value("service_key_option")
        known["service_needs_cards"] = cuda and cards
        source = (REPO / "templates/volta-serve.service.j2").read_text()
        return environment.from_string(source).render(known).splitlines()

    return render


def test_a_release_for_the_cards_waits_for_them(unit):
    needed = "nvidia-persistenced.service volta-gpu-mode.service"
    lines = unit(cuda=True, cards=True)
    assert f"Requires={needed}" in lines
    assert f"After={needed}" in lines
    assert "DeviceAllow=char-nvidia* rw" in lines


@pytest.mark.parametrize("cards", [True, False])
def test_a_release_for_the_cpu_starts_without(unit, cards):
    assert not [line for line in unit(cards=cards) if line.startswith("Requires=")]


def test_the_key_is_a_credential_of_the_system_and_a_file_of_the_user(unit):
    start = "/current/venv/bin/volta-serve serve"
    lines = unit(key="/root/key")
    assert "LoadCredential=api-key:/etc/volta/api-key" in lines
    assert f"ExecStart=/opt/volta{start} --api-key-file ${{CREDENTIALS_DIRECTORY}}/api-key" in lines
    lines = unit("systemd-user", key="/root/key")
    own = "--api-key-file /home/ada/.config/volta/api-key"
    assert f"ExecStart=/home/ada/.local/share/volta{start} {own}" in lines
    assert not [line for line in lines if line.startswith(("LoadCredential", "DynamicUser"))]
    assert f"ExecStart=/opt/volta{start}" in unit()


def test_slow_failures_too_end_in_a_unit_that_stays_down(unit):
    lines = dict(line.split("=", 1) for line in unit() if "=" in line and line[0] != "#")
    slowest = int(lines["TimeoutStartSec"]) + int(lines["WatchdogSec"])
    burst, interval = int(lines["StartLimitBurst"]), int(lines["StartLimitIntervalSec"])
    assert interval > burst * (slowest + int(lines["TimeoutStopSec"]) + int(lines["RestartSec"]))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_unit_is_confined(unit, tmp_path):
    path = tmp_path / "volta-serve.service"
    path.write_text("\n".join(unit(cuda=True, cards=True, key="/root/key")))
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
