"""A site's own checks: rules and packages, sound ones and broken ones."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from volta_doctor import plugins
from volta_doctor.catalog import checks
from volta_doctor.checks import CHECKS
from volta_doctor.folding import fold
from volta_doctor.judge import examine, judge, sections_of
from volta_doctor.plugins.rules import Rule
from volta_doctor.profile import detect

HOT = """
id: acme-hot-room
title: every GPU stays below what our cooling contract promises
gpu: nvidia
needs: [nvml]
each: {gpu: nvml.gpus}
when:
  fail: {if: gpu.temperature.gpu >= 80, say: "It is at {{ gpu.temperature.gpu }} C."}
  warn: {if: gpu.temperature.gpu >= 70, say: "It is at {{ gpu.temperature.gpu }} C already."}
  ok: {say: "It is at {{ gpu.temperature.gpu }} C."}
fix: Call the landlord.
risk: hardware
"""
KERNEL = """
id: acme-kernel
title: the kernel is the one that we tested
needs: [host]
when: {warn: {if: "not host.kernel.startswith('6.1.')", say: "It is {{ host.kernel }}."}}
fix: Boot the tested kernel.
risk: reboot
"""


@pytest.fixture(autouse=True)
def no_plugins_stay():
    yield
    plugins.load([])
    assert "acme-kernel" not in checks()


@pytest.fixture
def rules(tmp_path):
    def load(*texts):
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.yaml").write_text(text)
        return plugins.load([tmp_path])

    return load


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package whose entry point adds checks."""

    def install(code):
        (tmp_path / "acme_checks.py").write_text(textwrap.dedent(code))
        info = tmp_path / "acme_checks-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-checks\nVersion: 1\n")
        (info / "entry_points.txt").write_text(
            "[volta_doctor.checks]\nacme = acme_checks:register\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "acme_checks", raising=False)
        return plugins.load([])

    return install


@pytest.fixture
def examined(snapshot_with):
    def run(check_id, sections=None):
        facts = snapshot_with(sections or {}).facts
        return examine(facts, checks()[check_id], detect(facts))

    return run


def test_a_rule_on_every_gpu(rules, examined):
    assert rules(HOT) == []
    temperatures = {0: {"temperature": {"gpu": 70}}, 1: {"temperature": {"gpu": 80}}}
    warm, hot = examined("acme-hot-room", {"nvml": {"gpus": temperatures}})
    assert (warm.status, hot.status) == ("warn", "fail")
    assert hot.message == "It is at 80 C."
    assert hot.subject.startswith("GPU-00000001")
    assert hot.evidence[0].text == "fail if gpu.temperature.gpu >= 80"
    cool, _ = examined("acme-hot-room", {"nvml": {"gpus": {0: {"temperature": {"gpu": 69}}}}})
    assert (cool.status, cool.message) == ("ok", "It is at 69 C.")


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"nvml": "the disk is on fire"}, "the disk is on fire"),
        ({"nvml": {"gpus": {0: {"temperature": {"gpu": None}}}}}, "gpu is not known"),
        (
            {
                "nvml": {
                    "gpus": {0: {"temperature": {"gpu": {"error": 3, "text": "Not Supported"}}}}
                }
            },
            "NVML answers error 3 (Not Supported)",
        ),
        ({"nvml": {"gpus": []}}, "no gpu to judge"),
    ],
)
def test_a_missing_fact_is_unknown_and_never_ok(rules, examined, sections, says):
    rules(HOT)
    first, *_ = examined("acme-hot-room", sections)
    assert first.status == "unknown"
    assert says in first.message


def test_a_rule_on_the_host_is_judged_folded_and_asks_for_its_sections(rules, snapshot_with):
    rules(KERNEL + "hides: [iommu]")
    row = checks()["acme-kernel"]
    assert "host" in sections_of([row])
    assert row.rule == {"warn": "not host.kernel.startswith('6.1.')", "ok": "otherwise"}
    facts = snapshot_with({"host": {"kernel": "6.12.1", "cmdline": "intel_iommu=on"}}).facts
    findings = judge(facts, [row, checks()["iommu"]], detect(facts))
    assert [(f.id, f.status.value, f.folded_under) for f in findings] == [
        ("acme-kernel", "warn", None),
        ("iommu", "warn", "acme-kernel"),
    ]


def test_an_optional_fact_can_be_asked_for(rules, examined):
    rules(KERNEL.replace("not host.kernel.startswith('6.1.')", "host.container is defined"))
    assert examined("acme-kernel")[0].status == "ok"
    assert examined("acme-kernel", {"host": {"container": "docker"}})[0].status == "warn"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("title:", "titel:"), "unknown field `titel`"),
        (("needs: [host]", "needs: [hots]"), "no section 'hots'; there are host, pci"),
        (("id: acme-kernel", "id: iommu"), "id iommu is taken"),
        (("id: acme-kernel", "id: kernel"), "a site's name and a word"),
        (("risk: reboot", "risk: high"), "$.risk"),
        (("not host", "not ("), "when.warn.if"),
        (("{{ host.kernel }}", "{{ host.kernel"), "when.warn.say"),
        (("needs: [host]", "needs: [pci]"), "host is neither in needs nor in uses"),
        (("warn: {if", "ok: {if"), "when.ok"),
        (("when: {warn", "when: {bad"), "$.when"),
        (("id: acme-kernel", "id: ["), "expected"),
    ],
)
def test_a_broken_rule_is_a_finding_and_hides_no_other(rules, examined, tmp_path, change, says):
    (fault,) = rules(KERNEL.replace(*change), HOT)
    assert fault.source == str(tmp_path / "0.yaml")
    assert says in fault.reason
    (finding,) = examined("plugin-broken")
    assert (finding.status, finding.subject) == ("unknown", fault.source)
    assert finding.message == fault.reason
    assert examined("acme-hot-room")[0].status == "ok"


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    assert plugins.load([tmp_path]) == [(str(tmp_path / "pipe.yaml"), "not a file")]


def test_a_directory_that_is_not_there_is_told(tmp_path, examined):
    plugins.load([tmp_path / "none"])
    (finding,) = examined("plugin-broken")
    assert (finding.status, finding.message) == ("unknown", "No such file or directory")


def test_sound_plugins_are_said_to_load_and_without_any_nothing_is_said(rules, examined):
    plugins.load([])
    assert "plugin-broken" not in checks()
    rules(KERNEL)
    assert examined("plugin-broken")[0].status == "ok"


@pytest.mark.parametrize(
    "attack",
    [
        "host.__class__.__mro__",
        "''.__class__.__base__.__subclasses__()",
        "host.kernel.__init__.__globals__",
        "cycler.__init__.__globals__.os.system('true')",
        "range(10**9)|list",
    ],
)
def test_a_condition_reaches_nothing_but_facts(rules, examined, attack):
    faults = rules(KERNEL.replace("not host.kernel.startswith('6.1.')", attack))
    assert faults or examined("acme-kernel")[0].status == "unknown"


def test_a_condition_that_fails_names_file_and_key(rules, examined, tmp_path):
    rules(KERNEL.replace("not host.kernel.startswith('6.1.')", "host.kernel > 5"))
    (finding,) = examined("acme-kernel")
    assert finding.status == "unknown"
    assert f"{tmp_path}/0.yaml, when.warn.if: TypeError" in finding.message


def test_too_slow_a_condition_is_unknown(rules, examined, monkeypatch):
    monkeypatch.setattr(plugins, "LIMIT_S", 0.01)
    slow = "range(90000) | map('string') | join | list | sort | join | length > 0"
    rules(KERNEL.replace("not host.kernel.startswith('6.1.')", slow))
    (finding,) = examined("acme-kernel")
    assert finding.status == "unknown"
    assert "no answer within 0.01 s" in finding.message


SOUND = """
    from volta_doctor.catalog import Row
    from volta_doctor.checks.registry import check

    def register():
        @check(Row(id="acme-name", title="the host has our name", needs=["host"], hides=[],
                   rule={"fail": "another", "ok": "ours"}, fix="Name it.", risk="reconfigure",
                   source="ours"))
        def name(facts, row):
            name = facts.host.need().hostname
            return row.ok(name) if name.startswith("acme-") else row.fail(name)
"""


def test_a_package_adds_a_check(package, examined):
    assert package(SOUND) == []
    assert examined("acme-name")[0].status == "fail"
    assert examined("acme-name", {"host": {"hostname": "acme-1"}})[0].status == "ok"
    assert examined("acme-name", {"host": "the disk is on fire"})[0].status == "unknown"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise OSError('no licence')", "OSError: no licence"),
        ("def register(): 1 / 0", "ZeroDivisionError"),
        ("import sys\ndef register(): sys.exit(3)", "SystemExit: 3"),
        ("", "AttributeError"),
        (SOUND.replace("acme-name", "iommu"), "id iommu is taken"),
        (SOUND.replace('needs=["host"]', 'needs=["hots"]'), "no section 'hots'"),
        ("import time\ndef register(): time.sleep(9)", "no answer within 0.3 s"),
    ],
)
def test_a_broken_package_is_a_finding(package, examined, monkeypatch, code, says):
    if "sleep" in code:
        monkeypatch.setattr(plugins, "LIMIT_S", 0.3)
    (fault,) = package(code)
    assert fault.source == "acme (acme_checks:register)"
    assert says in fault.reason
    assert examined("plugin-broken")[0].status == "unknown"
    assert "iommu" in CHECKS


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "ZeroDivisionError"),
        ("return None", "TypeError"),
        ("return [row.ok('x'), 7]", "findings of its own row"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import time; time.sleep(9)", "no answer within 0.3 s"),
    ],
)
def test_a_package_s_check_that_breaks_is_unknown(package, snapshot_with, monkeypatch, body, says):
    monkeypatch.setattr(plugins, "LIMIT_S", 0.3)
    package(SOUND[: SOUND.index("            name = facts")] + f"            {body}\n")
    facts = snapshot_with({}).facts
    (finding,) = fold(examine(facts, checks()["acme-name"], detect(facts)))
    assert finding.status == "unknown"
    assert says in finding.message


def test_where_rules_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "SITE", tmp_path)
    env = {"VOLTA_DOCTOR_PLUGINS": "/a:/b"}
    assert [str(path) for path in plugins.directories(env)] == [str(tmp_path), "/a", "/b"]
    assert [str(path) for path in plugins.directories(env, site=False)] == ["/a", "/b"]
    monkeypatch.setattr(plugins, "SITE", tmp_path / "none")
    assert plugins.directories({}) == []


def test_the_examples_of_the_document_work(repo, rules, package, examined):
    text = (repo / "docs/plugins.md").read_text()
    blocks = {
        kind: re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("yaml", "python")
    }
    assert rules(*blocks["yaml"]) == []
    old = {"compute_capability": "7.0", "vbios": "88.00.13.00.02"}
    volta, _ = examined("acme-vbios", {"nvml": {"gpus": {0: old}}})
    assert volta.message.endswith("runs 88.00.13.00.02.")
    (other,) = examined("acme-vbios", {"nvml": {"gpus": {0: old | {"compute_capability": "8.0"}}}})
    assert other.status == "ok"
    assert examined("acme-hot-room")[0].message == "It is at 37 C."
    no_driver = {"host": {"kernel": "6.12.1"}, "modules": {"proc_version": None}}
    assert examined("acme-kernel", no_driver)[0].message == "It runs 6.12.1 with driver none."
    assert package(blocks["python"][0]) == []
    assert examined("acme-asset-tag")[0].message == "The host is called gpu1."


def test_every_key_of_a_rule_is_documented(repo):
    text = (repo / "docs/plugins.md").read_text()
    for field in Rule.__struct_fields__:
        assert field in text or field == "active", field


def test_the_command_line_takes_a_directory(repo, tmp_path):
    (tmp_path / "kernel.yaml").write_text(KERNEL.replace("'6.1.'", "'x'"))
    (tmp_path / "broken.yaml").write_text("id: acme-x")
    env = {**os.environ, "PYTHONPATH": str(repo / "doctor")}

    def doctor(*args):
        command = [sys.executable, "-m", "volta_doctor", *args, "--plugins", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, env=env)

    done = doctor("check", "--select", "site,plugins", "--format", "json")
    found = {f["id"]: f["status"] for f in json.loads(done.stdout)["findings"]}
    assert (done.returncode, found) == (3, {"acme-kernel": "warn", "plugin-broken": "unknown"})
    assert "the kernel is the one that we tested" in doctor("explain", "acme-kernel").stdout
    assert "acme-kernel" in doctor("list").stdout
