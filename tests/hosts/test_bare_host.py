"""From a bare Debian to a served, doctored model and back, on a host with real systemd.

The tests of this file are steps of one story and run in order.
"""

import json
import re
import shlex
import urllib.request

import openai
import pytest
from lab import free_port

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def port(host, checkout):
    port = free_port()
    host.run(f"sed -i 's/port: 8000/port: {port}/' {checkout}/stack.yaml")
    return port


@pytest.fixture(scope="module")
def up(host, checkout):
    def run(*arguments, check=True):
        return host.run(f"cd {checkout} && ./volta up {' '.join(arguments)}", 1200, check).stdout

    return run


def recap(output):
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", output.splitlines()[-2])}


def test_a_taken_port_is_refused_before_anything_is_made(host, up, port):
    host.run(f"systemd-run --unit=squatter python3 -m http.server {port} --bind 127.0.0.1")
    output = " ".join(up(check=False).split())
    host.run("systemctl stop squatter")
    assert f"port {port} on 127.0.0.1 is in use by pid" in output
    assert "http.server" in output
    assert host.run("ls /opt/volta", check=False).returncode != 0


def test_an_interrupted_run_is_made_anew(host, checkout, port):
    variables = {"HOME": "/root", **host.environment}.items()
    settings = " ".join(f"--setenv={name}={shlex.quote(value)}" for name, value in variables)
    host.run(f"systemd-run --unit=up {settings} {checkout}/volta up")
    host.run("until ls /opt/volta/releases/*/venv/bin/pip; do sleep 0.2; done", 600)
    host.run("systemctl kill --signal=KILL up", check=False)  # it may lose a race with an end
    assert host.run("systemctl is-active up", check=False).returncode != 0
    assert host.run("ls /opt/volta/releases/*/release.json", check=False).returncode != 0


def test_up_serves_an_answer_and_the_doctor_agrees(up, port):
    output = up()
    assert recap(output)["failed"] == 0
    assert f"http://127.0.0.1:{port}/v1" in output
    assert "Paris" in output


def test_the_openai_client_streams_the_answer(port):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    model = client.models.list().data[0].id
    chunks = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=32, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text


def test_a_second_run_changes_nothing(up, port):
    assert recap(up())["changed"] == 0


def test_a_control_node_finds_the_same_release_by_ssh(host, play, repo, port, tmp_path):
    """The same sources and stack give the same lock on another machine: nothing to do there."""
    stack = tmp_path / "stack.yaml"
    stack.write_text((repo / "stack.yaml").read_text().replace("port: 8000", f"port: {port}"))
    outcome = play(
        "site.yml", [host], preflight_stack=str(stack), preflight_bundles=str(tmp_path / "bundles")
    )
    assert outcome.recap["bare"]["changed"] == 1, outcome.output  # the bundle, on this machine


def test_the_doctor_states_the_profile(host, port):
    result = host.run("/opt/volta/current/venv/bin/volta-doctor check --format json")
    report = json.loads(result.stdout)
    assert report["profile"]["name"] == "cpu"
    by_id = {finding["id"]: finding["status"] for finding in report["findings"]}
    assert by_id["service-ready"] == "ok"
    assert by_id["release-matches-lock"] == "ok"
    assert by_id["driver-loaded"] == "skip"


def test_the_unit_is_hardened(host, port):
    host.run("systemd-analyze security --threshold=20 volta-serve.service")
    assert "root" not in host.run("ps -o user= -p $(systemctl show -P MainPID volta-serve)").stdout


def test_the_service_survives_a_reboot(host, port):
    before = host.run("cat /proc/sys/kernel/random/boot_id").stdout
    host.run("systemctl reboot", check=False)
    host.wait()
    assert host.run("cat /proc/sys/kernel/random/boot_id").stdout != before
    host.run("systemctl is-active volta-serve")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
        assert reply.status == 200


def test_a_corrupted_checkpoint_is_named(host, up, port):
    shard = "/opt/volta/models/SmolLM2-135M-Instruct-NVFP4/model.safetensors"
    host.run(f"cp {shard} /root/good && printf x | dd of={shard} bs=1 seek=9999 conv=notrunc")
    output = up(check=False)
    host.run(f"cp /root/good {shard}")
    assert "model.safetensors" in output
    assert "Remove /opt/volta/models/" in output


def test_an_unknown_key_in_the_stack_is_named(host, checkout, up, port):
    host.run(f"cp {checkout}/stack.yaml /root/good && echo 'modle: x' >> {checkout}/stack.yaml")
    output = up(check=False)
    host.run(f"cp /root/good {checkout}/stack.yaml")
    assert "unknown key 'modle' (did you mean 'model'?)" in " ".join(output.split())


def test_down_leaves_nothing(host, checkout, port):
    host.run(f"cd {checkout} && ./volta down", 120)
    left = host.run(
        "ls -d /opt/volta /etc/volta /etc/systemd/system/volta* /etc/systemd/system/*/volta* "
        "/etc/*.d/*volta* /etc/security/limits.d/*volta* /var/lib/prometheus/node-exporter/volta* "
        f"{checkout}/.venv {checkout}/build /root/.ansible 2>/dev/null; pgrep -f volta-serve",
        check=False,
    )
    assert left.stdout.split("\n") == [""]
