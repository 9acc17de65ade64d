"""The steps by which the checks of units put a unit right."""

import pytest

from volta_doctor.catalog import checks
from volta_doctor.judge import examine
from volta_doctor.profile import detect

UNIT = "volta-serve.service"
RELOAD = ["systemctl", "daemon-reload"]
RESTART = ["systemctl", "try-restart", UNIT]
ORDER = "[Unit]\nWants=modprobe@nvidia_uvm.service\nAfter=modprobe@nvidia_uvm.service\n"


@pytest.fixture
def steps(snapshot_with):
    def of(check_id, unit, **sections):
        facts = snapshot_with({"units": {"units": {3: unit}}, **sections}).facts
        (finding,) = examine(facts, checks()[check_id], detect(facts))
        return finding.remedy.steps

    return of


@pytest.mark.parametrize(
    ("check_id", "unit", "content"),
    [
        (  # what is high enough stays
            "unit-limits",
            {"limit_nofile_soft": 1024, "limit_nofile": 524288},
            "[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=65536:524288\n",
        ),
        (
            "unit-limits",
            {"limit_nofile_soft": 1024, "limit_nofile": "infinity"},
            "[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=65536:infinity\n",
        ),
        ("unit-start", {"after": []}, "[Unit]\nAfter=nvidia-persistenced.service\n"),
        (
            "unit-sandbox",
            {"device_allow": [], "proc_subset": "pid"},
            f"{ORDER}[Service]\nDevicePolicy=closed\nDeviceAllow=char-nvidia* rw\nProcSubset=all\n",
        ),
        (
            "unit-sandbox",
            {"private_devices": True, "device_allow": []},
            f"{ORDER}[Service]\nPrivateDevices=no\nDevicePolicy=closed\n"
            "DeviceAllow=char-nvidia* rw\n",
        ),
        (
            "unit-sandbox",
            {"address_families": "AF_INET", "system_calls": "read"},
            "[Service]\nRestrictAddressFamilies=AF_UNIX\nRestrictAddressFamilies=AF_NETLINK\n"
            "SystemCallFilter=memfd_create\n",
        ),
        ("numa", {"cpu_affinity": "20"}, "[Service]\nCPUAffinity=\nCPUAffinity=0-19,40-59\n"),
    ],
)
def test_a_drop_in_with_the_lines_that_are_needed(check_id, unit, content, steps):
    write, reload, restart = steps(check_id, unit)
    assert write.write == f"/etc/systemd/system/{UNIT}.d/volta-{check_id}.conf"
    assert write.content == content
    assert (reload.run, reload.undo) == (RELOAD, RELOAD)
    assert restart.run == RESTART


def test_logind_is_told_to_leave_shared_memory_alone(steps):
    write, reread = steps("unit-start", {"run_as": "ann", "uid": 1000, "dynamic_user": False})
    assert (write.write, write.content) == (
        "/etc/systemd/logind.conf.d/volta-unit-start.conf",
        "[Login]\nRemoveIPC=no\n",
    )
    assert reread.run == ["systemctl", "kill", "-s", "HUP", "systemd-logind.service"]


def test_a_users_unit_is_for_its_user(steps):
    source = f"/home/ann/.config/systemd/user/{UNIT}"
    theirs = {"serve": {"servers": {0: {"source": source, "user": "ann"}}}}
    assert steps("unit-limits", {"user": "ann", "limit_nofile_soft": 1024}, **theirs) == []


def test_a_slice_s_cpus_are_for_a_person(steps):
    assert steps("numa", {"allowed_cpus": "20-39"}) == []


@pytest.mark.parametrize(
    ("patch", "run"),
    [
        (
            {"load_state": "loaded", "unit_file_state": "enabled"},
            ["systemctl", "disable", "--now", "nvidia-fabricmanager.service"],
        ),
        (
            {"load_state": "loaded", "unit_file_state": "disabled", "active_state": "inactive"},
            ["systemctl", "enable", "--now", "nvidia-fabricmanager.service"],
        ),
    ],
)
def test_fabric_manager_is_switched(snapshot_with, patch, run):
    sections = {"units": {"units": {1: patch}}}
    if run[1] == "enable":
        switch = {"bus_id": "0000:34:00.0", "device": "0x1ac2", "pci_class": "0x068000"}
        manager = {"name": "nvidia-fabricmanager", "version": "580.95.05-1"}
        sections |= {"pci": {"devices": {2: switch}}, "packages": {"installed": {0: manager}}}
    facts = snapshot_with(sections).facts
    (finding,) = examine(facts, checks()["fabricmanager"], detect(facts))
    (step,) = finding.remedy.steps
    assert step.run == run
    assert step.undo[1] != step.run[1]
