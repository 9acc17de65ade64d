"""The `containers` section: the container runtime, its GPU support and cgroup driver."""

import json
import re

import msgspec

from volta_doctor.probe import CannotLook, Probe

_RUNTIMES = ("docker", "podman", "containerd", "crio")
_DOCKER = "/etc/docker/daemon.json"
_CONTAINERD = "/etc/containerd/config.toml"
_CDI = ("/etc/cdi", "/var/run/cdi")
_CHAR = "/dev/char"
_COMMAND_S = 5.0


class CgroupDriver(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who makes the cgroups of a runtime's containers: `name` is systemd or cgroupfs.

    `source` is the file that says so, or why it is the default; `name` is empty for `problem`.
    """

    runtime: str
    name: str = ""
    source: str = ""
    problem: str = ""


class ContainersFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The container runtimes by their commands, and how they come by GPUs.

    `toolkit_version` is that of nvidia-container-toolkit, None without one or for
    `toolkit_problem`; `ctk_path` is its command. `docker_runtimes` are the names in daemon.json.
    `cdi_specs` are the files that describe NVIDIA's devices. `unlinked` lists the NVIDIA device
    nodes without a link in /dev/char, None for `unlinked_problem`.
    """

    runtimes: list[str] = []
    toolkit_version: str | None = None
    toolkit_problem: str = ""
    ctk_path: str = ""
    docker_runtimes: list[str] = []
    docker_default_runtime: str = ""
    cgroup_drivers: list[CgroupDriver] = []
    cdi_specs: list[str] = []
    unlinked: list[str] | None = None
    unlinked_problem: str = ""


def read_daemon(probe: Probe) -> dict[str, object]:
    """Return docker's daemon.json. Raises CannotLook."""
    text = probe.text_or_none(_DOCKER)
    try:
        options = json.loads(text) if text and text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise CannotLook(f"{_DOCKER}: not sound JSON: {error}") from error
    if not isinstance(options, dict):
        raise CannotLook(f"{_DOCKER}: not a JSON object")
    return options


def docker_driver(probe: Probe, options: dict[str, object]) -> CgroupDriver:
    """Return docker's cgroup driver; without one named it depends on the host (docker 20.10)."""
    given = options.get("exec-opts")
    for option in given if isinstance(given, list) else []:
        key, _, name = str(option).partition("=")
        if key == "native.cgroupdriver":
            return CgroupDriver(runtime="docker", name=name, source=_DOCKER)
    unified = probe.exists("/sys/fs/cgroup/cgroup.controllers")
    systemd = unified and probe.exists("/run/systemd/system")
    why = "the default with cgroup v2 and systemd" if systemd else "the default"
    return CgroupDriver(runtime="docker", name="systemd" if systemd else "cgroupfs", source=why)


def containerd_driver(probe: Probe) -> CgroupDriver:
    """Return containerd's cgroup driver for Kubernetes; docker tells its own to containerd."""
    text = probe.text_or_none(_CONTAINERD) or ""
    given = re.search(r"^\s*SystemdCgroup\s*=\s*true\b", text, re.MULTILINE)
    return CgroupDriver(
        runtime="containerd",
        name="systemd" if given else "cgroupfs",
        source=_CONTAINERD if given else "the default",
    )


def find_drivers(probe: Probe, runtimes: list[str]) -> tuple[list[CgroupDriver], dict[str, object]]:
    """Return the cgroup drivers of the runtimes with that choice, and docker's options."""
    drivers, options = [], {}
    if "docker" in runtimes:
        try:
            options = read_daemon(probe)
            drivers.append(docker_driver(probe, options))
        except CannotLook as reason:
            drivers.append(CgroupDriver(runtime="docker", problem=str(reason)))
    if "containerd" in runtimes:
        try:
            drivers.append(containerd_driver(probe))
        except CannotLook as reason:
            drivers.append(CgroupDriver(runtime="containerd", problem=str(reason)))
    return drivers, options


def find_toolkit(probe: Probe) -> tuple[str | None, str, str]:
    """Return the toolkit's version, why it is not known, and the path of its command."""
    path = probe.which("nvidia-ctk")
    if path is None:
        older = probe.which("nvidia-container-runtime") or probe.which("nvidia-container-cli")
        return None, f"{older} comes without nvidia-ctk" if older else "", ""
    done = probe.run("nvidia-ctk", "--version", limit=_COMMAND_S)
    version = re.search(r"version (\d[\w.~+-]*)", done.stdout)
    return (version[1], "", path) if version else (None, f"nvidia-ctk: {done.complaint}", path)


def find_cdi(probe: Probe) -> list[str]:
    """Return the CDI specifications of NVIDIA's devices."""
    paths = [f"{directory}/{name}" for directory in _CDI for name in probe.names(directory)]
    kind = re.compile(r"\bkind\"?:\s*\"?nvidia\.com/")
    return [
        path
        for path in paths
        if path.endswith((".yaml", ".json")) and kind.search(probe.text(path))
    ]


def find_unlinked(probe: Probe) -> list[str]:
    """Return the NVIDIA device nodes that no link in /dev/char names."""
    nodes = [name for name in probe.names("/dev") if re.fullmatch(r"nvidia(\d+|ctl|-uvm)", name)]
    links = {
        (probe.link(f"{_CHAR}/{name}") or "").rsplit("/", 1)[-1] for name in probe.names(_CHAR)
    }
    return [f"/dev/{node}" for node in nodes if node not in links]


def collect(probe: Probe) -> ContainersFacts:
    """Look at commands, configuration files and device links."""
    runtimes = [name for name in _RUNTIMES if probe.which(name)]
    version, problem, path = find_toolkit(probe)
    drivers, options = find_drivers(probe, runtimes)
    named = options.get("runtimes")
    unlinked, unlinked_problem = None, ""
    try:
        unlinked = find_unlinked(probe)
    except CannotLook as reason:
        unlinked_problem = str(reason)
    return ContainersFacts(
        runtimes=runtimes,
        toolkit_version=version,
        toolkit_problem=problem,
        ctk_path=path,
        docker_runtimes=sorted(named) if isinstance(named, dict) else [],
        docker_default_runtime=str(options.get("default-runtime", "")),
        cgroup_drivers=drivers,
        cdi_specs=find_cdi(probe),
        unlinked=unlinked,
        unlinked_problem=unlinked_problem,
    )
