"""Processes: how /proc names them, whose they are, and which tools run."""

import pytest

from volta_doctor.facts import proc, processes
from volta_doctor.facts.proc import Cgroup

ID = "3f2a" * 16
STAT = {"/proc/sys/kernel/pid_max": "32768\n"}


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("0::/system.slice/vllm.service\n", Cgroup(unit="vllm.service")),
        ("0::/system.slice/docker.service/payload\n", Cgroup(unit="docker.service")),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/volta-serve.service\n",
            Cgroup(unit="volta-serve.service", manager=1000),
        ),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-1.scope\n", Cgroup()),
        ("0::/user.slice/user-0.slice/session-3.scope\n", Cgroup()),
        ("0::/system.slice/ssh.service\n", Cgroup()),
        ("0::/system.slice/system-sshd.slice/sshd@1-10.0.0.1:22.service\n", Cgroup()),
        ("0::/system.slice/cron.service\n", Cgroup()),
        (f"0::/system.slice/docker-{ID}.scope\n", Cgroup(container=ID[:12])),
        (f"0::/kubepods.slice/pod_1.slice/cri-containerd-{ID}.scope\n", Cgroup(container=ID[:12])),
        (f"12:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n", Cgroup(container=ID[:12])),
        (
            "4:memory:/x\n1:name=systemd:/system.slice/a@b.service\n0::/\n",
            Cgroup(unit="a@b.service"),
        ),
        ("0::/\n", Cgroup()),
        ("", Cgroup()),
    ],
)
def test_the_owner_of_a_process(text, owner):
    assert proc.parse_cgroup(text) == owner


def test_a_name_with_parentheses_and_line_breaks():
    process = proc.parse_stat("7 (a) (b\n) c) S 1 7 7")
    assert process == proc.Process(7, "a) (b\n) c", "S", 1)
    assert proc.parse_stat("") is None


def tool(pid, name, exe=None):
    files = {
        f"/proc/{pid}/stat": f"{pid} ({name[:15]}) S 1 1",
        f"/proc/{pid}/cgroup": "0::/system.slice/x.service\n",
        f"/proc/{pid}/status": "Uid:\t104\t104\t104\t104\n",
    }
    return files | ({f"/proc/{pid}/exe": f"-> {exe}"} if exe else {})


def test_tools_by_their_whole_names(host):
    control = tool(5, "nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-control")
    hidden = tool(6, "nvidia-cuda-mps-server")
    persistenced = tool(7, "nvidia-persistenced")
    others = tool(8, "ninja", "/usr/bin/python3.11") | tool(9, "bash")
    facts = processes.collect(host(files=STAT | control | hidden | persistenced | others))
    names = {process.pid: process.name for process in facts.tools}
    assert names == {
        5: "nvidia-cuda-mps-control",
        6: "nvidia-cuda-mps",
        7: "nvidia-persistenced",
        8: "ninja",
    }
    assert {(p.unit, p.uid, p.ppid, p.state) for p in facts.tools} == {("x.service", 104, 1, "S")}
    assert facts.gpu_users == []


def test_processes_whose_open_files_are_hidden(host, monkeypatch):
    probe = host(files=STAT | tool(5, "python3") | tool(6, "vllm") | {"/dev/nvidiactl": ""})
    names = probe.names

    def hide(path):
        if path == "/proc/6/fd":
            raise processes.CannotLook(f"{path}: Permission denied")
        return names(path)

    monkeypatch.setattr(probe, "names", hide)
    facts = processes.collect(probe)
    assert (facts.hidden, facts.hidden_pids, facts.gpu_users) == (1, [6], [])
