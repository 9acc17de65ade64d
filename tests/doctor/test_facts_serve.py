"""Servers as they are found: units, processes, the release."""

import os

import pytest

from volta_doctor.facts import serve
from volta_doctor.facts.serve import Flags, interpreter
from volta_doctor.facts.serve.command_line import Command

VENV = "/srv/venv"
ID = "3f2a" * 16


def process(pid, *argv, ppid=1, state="S", cgroup="0::/\n", uid=0, env=None, exe=None, name="x"):
    """What /proc shows of a process."""
    tree = {
        f"/proc/{pid}/stat": f"{pid} ({name}) {state} {ppid} {pid} {pid} 0 -1",
        f"/proc/{pid}/cmdline": "".join(f"{word}\0" for word in argv),
        f"/proc/{pid}/cgroup": cgroup,
        f"/proc/{pid}/status": f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
        f"/proc/{pid}/cwd": "-> /",
    }
    if env is not None:
        tree[f"/proc/{pid}/environ"] = "".join(f"{k}={v}\0" for k, v in env.items())
    if exe:
        tree[f"/proc/{pid}/exe"] = f"-> {exe}"
    return tree


def venv(prefix=VENV, script="vllm"):
    return {
        f"{prefix}/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.3\n",
        f"{prefix}/bin/python3": "-> /usr/bin/python3.12",
        f"{prefix}/bin/python": "-> python3",
        f"{prefix}/bin/{script}": f"#!{prefix}/bin/python3\nimport sys\n",
        "/usr/bin/python3.12": b"\x7fELF",
    }


UNIT = """# A unit as people write it
[Unit]
Description=vLLM
[Service]
User=llm
Environment="CUDA_VISIBLE_DEVICES=0,1" HF_TOKEN=hf_abc
EnvironmentFile=-/etc/default/vllm
ExecStart=/srv/venv/bin/vllm serve ${MODEL} \\
  # the fast one
  --tensor-parallel-size 2 --max-model-len=32K --api-key s3cret \\
  --gpu-memory-utilization 0.92
"""
PASSWD = "root:x:0:0:root:/root:/bin/bash\nllm:x:1001:1001::/home/llm:/bin/bash\n"


def only(facts):
    (server,) = facts.servers
    return server


def test_a_unit_that_is_down(host):
    snapshot = "/home/llm/.cache/huggingface/hub/models--org--m"
    probe = host(
        files=venv()
        | {
            "/etc/systemd/system/vllm.service": UNIT,
            "/etc/systemd/system/vllm.service.d/10-dtype.conf": (
                "[Service]\nEnvironment=VLLM_ATTENTION_BACKEND=TRITON_ATTN\n"
            ),
            "/etc/default/vllm": "# here\nMODEL=org/m\n",
            "/etc/passwd": PASSWD,
            f"{snapshot}/refs/main": "abc123",
            f"{snapshot}/snapshots/abc123": None,
            "/proc": None,
        }
    )
    server = only(serve.collect(probe))
    assert (server.name, server.unit, server.engine) == ("vllm.service", "vllm.service", "vllm")
    assert server.source == "/etc/systemd/system/vllm.service"
    assert server.flags == Flags(
        model="org/m",
        tensor_parallel_size=2,
        max_model_len=32 * 1024,
        gpu_memory_utilization=0.92,
        attention_backend="TRITON_ATTN",
    )
    assert server.pids == []
    assert server.env == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "VLLM_ATTENTION_BACKEND": "TRITON_ATTN",
    }
    assert (server.user, server.home) == ("llm", "/home/llm")
    assert (server.python, server.prefix) == (f"{VENV}/bin/python3", VENV)
    assert server.model_dir == f"{snapshot}/snapshots/abc123"
    assert "s3cret" not in repr(server)
    assert "hf_abc" not in repr(server)


def test_a_running_unit_is_one_server_with_its_workers(host):
    group = {"cgroup": "0::/system.slice/vllm.service\n"}
    probe = host(
        files=venv()
        | {"/etc/systemd/system/vllm.service": UNIT, "/etc/passwd": PASSWD}
        | process(
            700,
            f"{VENV}/bin/python3",
            f"{VENV}/bin/vllm",
            "serve",
            "/models/q",
            "-tp",
            "4",
            "--enforce-eager",
            uid=1001,
            env={"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HOME": "/home/llm", "HF_TOKEN": "hf_abc"},
            exe="/usr/bin/python3.12",
            **group,
        )
        | process(701, "VLLM::EngineCore", ppid=700, **group)
        | process(702, "VLLM::Worker_TP1", ppid=701, **group)
        | process(703, "VLLM::Worker_TP0", ppid=1, **group)  # its parent has died
        | process(800, "grep", "vllm serve")
        | {"/models/q": None}
    )
    server = only(serve.collect(probe))
    assert server.name == "vllm.service"
    assert server.source == "/etc/systemd/system/vllm.service"
    assert server.pids == [700, 701, 702, 703]
    assert server.flags == Flags(model="/models/q", tensor_parallel_size=4, enforce_eager=True)
    assert server.env == {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HOME": "/home/llm"}
    assert (server.user, server.prefix, server.model_dir) == ("llm", VENV, "/models/q")


def test_two_servers_of_one_login_are_two(host):
    session = {"cgroup": "0::/user.slice/user-0.slice/session-3.scope\n", "env": {}}
    first = process(10, "/opt/llama/llama-server", "-m", "/m/a.gguf", "-c", "4096", **session)
    second = process(11, "/usr/local/bin/ollama", "serve", ppid=9, **session)
    child = process(12, "/usr/local/bin/ollama", "runner", "--model", "/x", ppid=11, **session)
    probe = host(files=first | second | child | {"/opt/llama/llama-server": b"\x7fELF"})
    one, two = serve.collect(probe).servers
    assert (one.name, one.engine, one.unit, one.python) == ("pid 10", "llamacpp", None, None)
    assert one.flags == Flags(model="/m/a.gguf", max_model_len=4096)
    assert (two.name, two.engine, two.pids) == ("pid 11", "ollama", [11, 12])


def test_a_container_has_a_file_system_and_users_of_its_own(host):
    probe = host(
        files={"/etc/passwd": PASSWD, "/proc/50/root/models/q": None}
        | {f"/proc/50/root{path}": content for path, content in venv("/opt/env").items()}
        | process(
            50,
            "/opt/env/bin/python3",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/models/q",
            "--tp",
            "2",
            "--mem-fraction-static",
            "0.8",
            cgroup=f"0::/system.slice/docker-{ID}.scope\n",
            uid=1001,
            env={"HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "all"},
        )
    )
    server = only(serve.collect(probe))
    assert (server.name, server.container) == (f"container {ID[:12]}", ID[:12])
    assert (server.user, server.home) == (None, "/proc/50/root/root")
    assert server.prefix == "/proc/50/root/opt/env"
    assert server.model_dir == "/proc/50/root/models/q"
    assert server.flags.tensor_parallel_size == 2
    assert server.flags.gpu_memory_utilization == 0.8


RELEASE = (
    '{"schema": 1, "digest": "sha256:ab", "profile": "v100", "manager": "%s", "unit": "%s",'
    ' "url": "http://127.0.0.1:8000", "model": "q", "model_dir": "/opt/volta/models/q",'
    ' "python": "3.12", "created": "2026-11-30T00:00:00Z"}'
)


def release(manager, unit):
    directory = "/opt/volta/releases/ab"
    return {
        "/opt/volta/current": "-> releases/ab",
        f"{directory}/release.json": RELEASE % (manager, unit),
        f"{directory}/serve.env": "VOLTA_SERVE_MODEL=/opt/volta/models/q\nVOLTA_SERVE_PORT=8000\n",
        "/opt/volta/models/q": None,
    }


def test_the_release_is_a_server_even_without_its_unit(host):
    server = only(serve.collect(host(files=release("systemd", "volta-serve.service"))))
    assert (server.name, server.engine) == ("volta-serve.service", "embedded")
    assert server.flags == Flags(model="/opt/volta/models/q", port=8000)
    assert server.model_dir == "/opt/volta/models/q"


def test_supervisors_program_is_the_releases_server(host):
    running = process(
        9,
        "/opt/volta/current/venv/bin/python",
        "/opt/volta/current/venv/bin/volta-serve",
        "serve",
        cgroup="0::/system.slice/supervisor.service\n",
        env={"VOLTA_SERVE_MODEL": "/opt/volta/models/q"},
    )
    server = only(serve.collect(host(files=release("supervisor", "volta-serve") | running)))
    assert (server.name, server.pids) == ("volta-serve", [9])


@pytest.mark.parametrize(
    ("start", "prefix"),
    [
        ("/bin/bash -lc 'source /srv/venv/bin/activate && exec vllm serve q -tp 2'", VENV),
        ("/usr/bin/numactl --cpunodebind=0 /srv/venv/bin/vllm serve q -tp 2", VENV),
        ("/srv/start.sh", VENV),
        ("/bin/bash /srv/start.sh", VENV),
        ("/usr/bin/env PATH=/srv/venv/bin vllm serve q -tp 2", None),
    ],
)
def test_wrapped_starts(host, start, prefix):
    script = "#!/bin/bash\nset -e\nexport X=1\n/srv/venv/bin/vllm serve q \\\n  -tp 2\n"
    unit = f"[Service]\nExecStart={start}\n"
    probe = host(files=venv() | {"/etc/systemd/system/a.service": unit, "/srv/start.sh": script})
    server = only(serve.collect(probe))
    assert (server.name, server.engine, server.prefix) == ("a.service", "vllm", prefix)
    assert server.flags == Flags(model="q", tensor_parallel_size=2)


def test_instances_count_and_templates_and_masked_units_do_not(host):
    template = "[Service]\nExecStart=/usr/bin/llama-server -m /models/%i.gguf\n"
    probe = host(
        files={
            "/etc/systemd/system/llama@.service": template,
            "/etc/systemd/system/multi-user.target.wants/llama@q3.service": "-> ../llama@.service",
            "/usr/lib/systemd/system/ollama.service": "[Service]\nExecStart=/bin/ollama serve\n",
            "/etc/systemd/system/ollama.service": "-> /dev/null",
            "/dev/null": "",
        }
    )
    server = only(serve.collect(probe))
    assert (server.name, server.flags.model) == ("llama@q3.service", "/models/q3.gguf")


def test_an_emptied_exec_start_starts_nothing(host):
    unit = "[Service]\nExecStart=/bin/ollama serve\nExecStart=\nExecStart=/bin/true\n"
    assert serve.collect(host(files={"/etc/systemd/system/o.service": unit})).servers == []


def test_a_configuration_file_counts_less_than_the_command_line(host):
    config = "model: org/m\ntensor-parallel-size: 4\nenforce_eager: true\napi-key: s3cret\n"
    argv = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--config=/c.yaml", "-tp=2"]
    probe = host(files=process(5, *argv, env={}) | {"/c.yaml": config})
    server = only(serve.collect(probe))
    assert server.flags == Flags(model="org/m", tensor_parallel_size=2, enforce_eager=True)
    assert "s3cret" not in repr(server)


def test_a_missing_configuration_file_and_a_wrong_number_are_told(host):
    argv = ["vllm", "serve", "m", "--config", "/gone.yaml", "--port", "http"]
    server = only(serve.collect(host(files=process(5, *argv, env={}))))
    assert "/gone.yaml: No such file" in server.flags_problem
    assert "port is 'http'" in server.flags_problem


def test_1cat_is_known_by_its_package(host):
    package = f"{VENV}/lib/python3.12/site-packages/1cat_vllm-1.3.0.dist-info"
    argv = [f"{VENV}/bin/python3", f"{VENV}/bin/vllm", "serve", "m"]
    server = only(serve.collect(host(files=venv() | {package: None} | process(5, *argv, env={}))))
    assert server.engine == "1cat-vllm"


def test_an_environment_that_may_not_be_seen(host):
    probe = host(files=process(5, "vllm", "serve", "m") | {"/proc/5/environ": None}, is_root=False)
    server = only(serve.collect(probe))
    assert server.env is None
    assert server.env_problem == "/proc/5/environ: Is a directory: run again with sudo"


def test_a_stuck_process_is_not_asked_for_its_command_line(host):
    probe = host(files=process(5, "vllm", "serve", "m", state="D"))
    facts = serve.collect(probe)
    assert facts.servers == []
    assert facts.problem == "the command line is hidden of 1 process: run again with sudo"


def test_proc_that_hides_the_processes_of_others(host):
    mounts = "proc /proc proc rw,nosuid,relatime,hidepid=invisible 0 0\n"
    facts = serve.collect(host(files={"/proc/self/mounts": mounts}, is_root=False))
    assert "hidepid" in facts.problem


def test_nccls_files_in_effect(host):
    files = {
        "/root/.nccl.conf": "NCCL_P2P_LEVEL=NVL # here\n",
        "/etc/nccl.conf": "# all\nNCCL_P2P_LEVEL=LOC\nNCCL_DEBUG = INFO\nPASSWORD=x\n",
    }
    server = only(
        serve.collect(host(files=process(5, "vllm", "serve", "m", env={"HOME": "/root"}) | files))
    )
    assert server.nccl_files == ["/root/.nccl.conf", "/etc/nccl.conf"]
    assert server.nccl_conf == {"NCCL_P2P_LEVEL": "NVL", "NCCL_DEBUG": "INFO"}


def test_a_pipe_in_place_of_a_program_is_not_waited_for(host):
    probe = host(files={"/srv": None})
    os.mkfifo(probe.path("/srv/vllm"))
    command = Command(["/srv/vllm", "serve"])
    assert probe.within(5, lambda: interpreter.find(probe, command, {}, None)) == (None, None)
