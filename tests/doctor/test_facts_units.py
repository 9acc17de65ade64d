"""Units as systemd 252 prints them, logind's settings, CPU lists."""

from collections.abc import Mapping
from typing import Any

import pytest

from volta_doctor.checks.sandbox import allows
from volta_doctor.facts import cpu_list, logind, serve, units
from volta_doctor.facts.serve import ServeFacts, Server
from volta_doctor.probe import CannotLook

ODD = ("t-box", "t-deny", "t-none", "t-limit", "t-multi", "u-bad", "u-dev")


@pytest.fixture(scope="module")
def odd(data):
    """Units with every kind of sandbox, each as a real systemd shows it."""
    blocks = units.parse_blocks((data / "systemctl/odd-252.txt").read_text())
    return {
        name: units.parse_unit(f"{name}.service", None, block)
        for name, block in zip(ODD, blocks, strict=True)
    }


@pytest.fixture
def booted(host, data, monkeypatch):
    """Return a function that makes a host with systemd and these servers."""

    def make(servers=(), files: Mapping[str, Any] = {}, commands: Mapping[str, Any] = {}):
        monkeypatch.setattr(serve, "find", lambda probe: ServeFacts(servers=list(servers)))
        names = "nvidia-persistenced.service nvidia-fabricmanager.service"
        line = f"systemctl --system show -p {units._PROPERTIES} {names} modprobe@nvidia_uvm.service"
        shown = (data / "systemctl/template-252.txt").read_text()
        own = [s.unit for s in servers if s.unit and units.owner_of(s) is None]
        if not own:
            shown = "\n\n".join(shown.split("\n\n")[:3])
        commands = {
            " ".join([line, *own]): shown,
            "systemctl --version": "systemd 252 (252.39-1~deb12u2)\n+PAM\n",
            **commands,
        }
        return host(files={units.BOOTED: None, **files}, commands=commands)

    return make


def test_device_lines_are_repeated_and_paths_have_options(odd):
    box = odd["t-box"]
    assert box.device_allow == ["char-nvidia-uvm rwm", "char-nvidia* rw", "/dev/nvidia0 rw"]
    assert box.bind_paths == [
        "/dev/nvidia0:/dev/nvidia0:rbind",
        "/dev/nvidiactl:/dev/nvidiactl:rbind",
        "-/dev/nvidia-uvm:/dev/nvidia-uvm",
        "/etc:/etc:rbind",
    ]
    assert (box.private_devices, box.device_policy, box.proc_subset) == (True, "strict", "pid")
    assert odd["u-dev"].device_allow == ["char-nvidia-uvm r", "/dev/nvidia0 rwm"]
    assert odd["t-deny"].device_allow == []


def test_filters_allow_or_deny(odd):
    def let(unit, name):
        text = unit.address_families if name.startswith("AF_") else unit.system_calls
        return allows(text, name)

    assert let(odd["t-box"], "AF_INET") and not let(odd["t-box"], "AF_NETLINK")
    assert not let(odd["t-deny"], "AF_UNIX") and let(odd["t-deny"], "AF_INET")
    assert not let(odd["t-none"], "AF_UNIX")  # "none" is printed as nothing at all
    assert let(odd["t-multi"], "AF_UNIX")  # and no restriction as ~
    assert let(odd["t-box"], "read") and not let(odd["t-box"], "memfd_create")
    assert not let(odd["t-deny"], "memfd_create") and not let(odd["t-deny"], "mlock2")
    assert not let(odd["t-none"], "memfd_create")  # denied with an error of its own


def test_limits(odd):
    assert (odd["t-box"].limit_memlock, odd["t-box"].memory_max) == (64 << 20, 8 << 30)
    assert (odd["t-box"].limit_nofile, odd["t-box"].limit_nofile_soft) == (4096, 1024)
    assert odd["t-deny"].limit_nofile == odd["t-multi"].memory_max == "infinity"
    assert units.parse_limit("18446744073709551615") == "infinity"
    assert units.parse_limit("") is units.parse_limit("[not set]") is None


def test_states_and_start_limits(odd):
    limit = odd["t-limit"]
    assert (limit.active_state, limit.result, limit.restarts) == ("failed", "exit-code", 2)
    assert odd["u-bad"].load_state == "bad-setting"
    assert (odd["t-none"].start_timeout_s, odd["t-box"].start_timeout_s) == (None, 90.0)
    assert (odd["t-deny"].run_as, odd["t-none"].dynamic_user) == ("daemon", True)


def test_what_an_older_systemd_does_not_know_is_no_restriction():
    old = units.parse_unit("x.service", None, {"LoadState": ["loaded"]})
    assert (old.proc_subset, old.device_policy, old.address_families) == ("all", "auto", "~")
    assert old.limit_memlock is None  # no limit is not the same as no answer


def test_cpus(odd):
    assert odd["t-multi"].cpu_affinity == odd["t-multi"].allowed_cpus == "0,2-5,8"
    assert odd["t-box"].cpu_affinity == "0-1"
    # systemd 239: CPUs 0 to 3, 8 and 64
    assert cpu_list.from_systemd("0f010000000000000100000000000000") == "0-3,8,64"
    assert cpu_list.parse("0-2,40") == {0, 1, 2, 40}
    assert cpu_list.parse("") == set()
    for text in ("0-99999999999", "all", "-1"):
        with pytest.raises(ValueError):
            cpu_list.parse(text)


def test_the_template_is_read_whole(booted):
    server = Server(
        name="volta-serve.service",
        engine="embedded",
        source="/etc/systemd/system/volta-serve.service",
        unit="volta-serve.service",
    )
    found = units.collect(booted([server]))
    unit = found.find("volta-serve.service")
    assert unit.restart_prevented_by == ["1", "64"]
    assert (unit.limit_memlock, unit.limit_nofile, unit.memory_max) == (
        "infinity",
        65536,
        "infinity",
    )
    assert unit.device_allow == ["char-nvidia* rw"]
    assert unit.unit_file_state == "enabled"
    assert {"nvidia-persistenced.service", "modprobe@nvidia_uvm.service"} <= set(unit.after)
    assert [loader.unit for loader in found.uvm_loaders] == ["modprobe@nvidia_uvm.service"]
    assert found.find("nvidia-persistenced.service").load_state == "not-found"
    assert found.systemd == "systemd 252 (252.39-1~deb12u2)"


def test_a_users_unit_is_asked_of_that_users_manager(booted):
    def server(user, home):
        source = f"{home}/.config/systemd/user/llm.service"
        names = {"name": f"llm of {user}", "unit": "llm.service", "user": user, "home": home}
        return Server(engine="vllm", source=source, **names)

    block = "LoadState=loaded\nLimitNOFILE=4096\n"
    own = f"systemctl --user show -p {units._PROPERTIES} llm.service"
    probe = booted(
        [server("root", "/root"), server("ann", "/home/ann"), server("bob", "/home/bob")],
        commands={
            own: block,
            own.replace("--user", "--user --machine=ann@"): block,
            own.replace("--user", "--user --machine=bob@"): (1, "", "Failed to connect to bus\n"),
        },
    )
    found = units.collect(probe)
    assert found.find("llm.service", "ann").limit_nofile == 4096
    assert found.find("llm.service", "root").problem == ""
    assert found.find("llm.service", "bob").problem.endswith("show: Failed to connect to bus")
    assert found.find("llm.service") is None


def test_a_server_without_a_unit_is_not_asked_for(booted):
    server = Server(name="pid 7", engine="vllm", source="/proc/7")
    assert len(units.collect(booted([server])).units) == 3


def test_the_user_of_a_unit(booted):
    unit = units.UnitFacts(name="x.service", run_as="ann", dynamic_user=False)
    probe = booted(
        files={
            "/etc/passwd": "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n",
            "/var/lib/systemd/linger/ann": "",
        }
    )
    known = units.with_account(probe, unit)
    assert (known.uid, known.lingers) == (1000, True)
    by_number = units.with_account(probe, units.UnitFacts(name="y.service", run_as="1001"))
    assert (by_number.uid, by_number.lingers) == (1001, False)
    ldap = units.with_account(probe, units.UnitFacts(name="z.service", run_as="ldap"))
    assert ldap.uid is None


def test_without_systemd_there_is_a_reason_and_no_failure(host, monkeypatch):
    monkeypatch.setattr(serve, "find", lambda probe: ServeFacts(servers=[]))
    found = units.collect(host())
    assert found.problem == "systemd does not run here (/run/systemd/system does not exist)"


def test_servers_that_cannot_be_found_leave_the_other_units(booted, monkeypatch):
    probe = booted()

    def lost(probe):
        raise CannotLook("no /proc")

    monkeypatch.setattr(serve, "find", lost)
    assert len(units.collect(probe).units) == 3


def test_systemctl_that_fails_is_a_reason_for_each_unit(booted):
    probe = booted()
    line = next(command for command in probe.commands if " show " in command)
    probe.commands[line] = (1, "", "Failed to connect to bus: No such file or directory\n")
    found = units.collect(probe)
    assert {unit.problem for unit in found.units} == {
        "systemctl --system show: Failed to connect to bus: No such file or directory"
    }
    probe.commands[line] = "LoadState=loaded\n"
    assert "answers for 1 of 3 units" in units.collect(probe).units[0].problem


@pytest.mark.parametrize(
    ("files", "unit", "line"),
    [
        ({"/etc/modules-load.d/cuda.conf": "# for CUDA\nnvidia-uvm\n"}, units.MODULES_LOAD, 2),
        ({"/usr/lib/modules-load.d/cuda.conf": "nvidia_uvm\n"}, units.MODULES_LOAD, 1),
        (
            {"/lib/systemd/system/nvidia-init.service": "ExecStart=/sbin/modprobe nvidia-uvm\n"},
            "nvidia-init.service",
            None,
        ),
        (
            {"/lib/systemd/system/nvidia-init.service": "ExecStart=nvidia-modprobe -c0 -u\n"},
            "nvidia-init.service",
            None,
        ),
    ],
)
def test_what_loads_uvm(booted, files, unit, line):
    (found,) = units.find_uvm_loaders(booted(files=files), {"nvidia-init.service"})
    assert (found.unit, found.line) == (unit, line)


def test_what_does_not_load_uvm(booted):
    files = {
        "/etc/modules-load.d/cuda.conf": "#nvidia-uvm\nnvidia\n",
        "/etc/modules-load.d/modules.conf": "-> ../modules",  # which a minimal Debian lacks
        "/usr/lib/modules-load.d/cuda.conf": "nvidia-uvm\n",  # hidden by the one above
        "/lib/systemd/system/nvidia-init.service": "# nvidia-uvm\nExecStart=nvidia-modprobe -c0\n",
    }
    assert units.find_uvm_loaders(booted(files=files), {"nvidia-init.service"}) == []


_LOGIND = {"/lib/systemd/systemd-logind": ""}
_DEBIAN = "[Login]\n#KillUserProcesses=no\n#RemoveIPC=yes\n"


@pytest.mark.parametrize(
    ("files", "held", "source"),
    [
        ({}, False, "systemd-logind is not installed"),
        (_LOGIND, True, "logind's default"),
        (_LOGIND | {"/etc/systemd/logind.conf": _DEBIAN}, True, "/etc/systemd/logind.conf"),
        (  # Red Hat is built with another default
            _LOGIND | {"/etc/systemd/logind.conf": _DEBIAN.replace("=yes", "=no")},
            False,
            "/etc/systemd/logind.conf",
        ),
        (
            _LOGIND
            | {
                "/etc/systemd/logind.conf": _DEBIAN,
                "/etc/systemd/logind.conf.d/50-ipc.conf": "[Login]\nRemoveIPC=no\n",
            },
            False,
            "/etc/systemd/logind.conf.d/50-ipc.conf",
        ),
        (
            _LOGIND
            | {
                "/usr/lib/systemd/logind.conf.d/50-ipc.conf": "[Login]\nRemoveIPC=no\n",
                "/etc/systemd/logind.conf.d/50-ipc.conf": "[Login]\n",
            },
            True,
            "logind's default",
        ),
        (
            _LOGIND
            | {
                "/etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                "/run/systemd/logind.conf.d/9.conf": "[Login]\nRemoveIPC=On\nRemoveIPC=perhaps\n",
            },
            True,
            "/run/systemd/logind.conf.d/9.conf",
        ),
    ],
)
def test_remove_ipc(host, files, held, source):
    assert logind.find_remove_ipc(host(files=files)) == (held, source)
