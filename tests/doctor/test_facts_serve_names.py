"""Servers of one name, under two names, and in places that are not this host's own."""

import pytest

from volta_doctor.facts import python_envs, serve

PASSWD = "root:x:0:0::/root:/bin/bash\nann:x:1001:1001::/home/ann:/\nbob:x:1002:1002::/home/bob:/\n"
UNIT = "[Service]\nExecStart=/usr/bin/llama-server -m /m.gguf --port %s\n"
OF_USERS = {
    f"/home/{user}/.config/systemd/user/llm.service": UNIT % user for user in ("ann", "bob")
}
SESSIONS = {"/run/user/1001": None, "/run/user/1002": None, "/etc/passwd": PASSWD}


def running(pid, cgroup, uid=0, argv=("/usr/bin/llama-server", "-m", "/m.gguf"), env=""):
    return {
        f"/proc/{pid}/stat": f"{pid} (x) S 1 {pid}",
        f"/proc/{pid}/cmdline": "".join(f"{word}\0" for word in argv),
        f"/proc/{pid}/cgroup": f"0::{cgroup}\n",
        f"/proc/{pid}/status": f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
        f"/proc/{pid}/environ": env,
    }


def of_user(uid):
    return f"/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/llm.service"


def test_units_of_one_name_are_servers_of_their_own(host):
    system = {"/etc/systemd/system/llm.service": UNIT % 1}
    alive = running(7, of_user(1002), 1002) | running(8, "/system.slice/llm.service")
    found = serve.collect(host(files=SESSIONS | OF_USERS | system | alive)).servers
    assert {server.name: (server.user, server.pids, server.unit) for server in found} == {
        "llm.service": ("root", [8], "llm.service"),
        "llm.service of ann": ("ann", [], "llm.service"),
        "llm.service of bob": ("bob", [7], "llm.service"),
    }


def test_several_servers_of_one_unit_stand_for_it(host):
    group = "/system.slice/llm.service"
    files = {"/etc/systemd/system/llm.service": UNIT % 1} | running(7, group) | running(8, group)
    found = serve.collect(host(files=files)).servers
    assert [(server.name, server.unit) for server in found] == [
        ("pid 7", "llm.service"),
        ("pid 8", "llm.service"),
    ]


def test_an_alias_is_no_second_server(host):
    units = {
        "/usr/lib/systemd/system/llm.service": UNIT % 1,
        "/etc/systemd/system/model.service": "-> ../../../usr/lib/systemd/system/llm.service",
        "/etc/systemd/system/chat.service": "-> llm.service",
        "/etc/systemd/system/linked.service": "-> ../../../srv/linked.service",
        "/srv/linked.service": UNIT % 2,
    }
    found = serve.collect(host(files=units)).servers
    assert sorted(server.name for server in found) == ["linked.service", "llm.service"]


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [
        ("/lxc/101/ns/system.slice/llm.service", "101"),
        ("/lxc.payload.chat/system.slice/llm.service", "chat"),
        ("/machine.slice/systemd-nspawn@chat.service/payload/system.slice/llm.service", "chat"),
        ("/machine.slice/machine-chat.scope/payload/system.slice/llm.service", "chat"),
    ],
)
def test_a_whole_system_in_a_container(host, cgroup, name):
    system = {"/etc/systemd/system/llm.service": UNIT % 1}
    one, two = serve.collect(host(files=system | running(7, cgroup))).servers
    assert (one.name, one.pids) == ("llm.service", [])
    assert (two.name, two.unit, two.pids) == (f"container {name}", None, [7])


def test_an_environment_that_is_not_found_is_not_passed_over(host):
    unit = "[Service]\nExecStart=/opt/conda/bin/conda run -n x vllm serve m\n"
    probe = host(files={"/etc/systemd/system/a.service": unit})
    (server,) = serve.collect(probe).servers
    assert server.python_problem == "the Python that runs vllm was not found"
    (env,) = python_envs.collect(probe).envs
    assert (env.prefix, env.used_by) == ("a.service", ["a.service"])
    assert env.problem == "the Python that runs vllm was not found"


def test_secrets_in_what_is_told_of_files(host):
    unit = "[Service]\nExecStart=vllm serve s3://k:s3cret@h/m --config /c.yaml\n"
    config = "api-key: 's3cret\nmodel: [\n"
    files = {"/etc/systemd/system/a.service": unit, "/c.yaml": config}
    (server,) = serve.collect(host(files=files)).servers
    assert server.flags.model == "s3://***@h/m"
    assert server.flags_problem.startswith("/c.yaml: no sound YAML, line ")
    assert "s3cret" not in repr(server)
