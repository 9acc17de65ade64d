"""Containers: room for what processes share, and GPUs that stay; MPS, whose files outlive it."""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.facts.containers import ContainersFacts
from volta_doctor.facts.host import SHM
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import NvmlFacts
from volta_doctor.findings import HOST, Evidence, Finding, Step

_MIB = 1 << 20
_TOO_SMALL, _SMALL = 512 * _MIB, 1024 * _MIB
_UNKNOWN_ERROR = 999  # nvmlReturn_t (nvml.h)
_LINK = ["nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all"]
_UDEV_RULE = "/etc/udev/rules.d/71-nvidia-dev-char.rules"


@check("shm")
def shm(facts: Facts, row: Row) -> Iterator[Finding]:
    """The ranks of a server hand tensors to each other through /dev/shm."""
    host = facts.host.need()
    where = f"in this {host.container} container" if host.container else "on the host itself"
    yield _judge_shm(row, HOST, where, host.shm_bytes, contained=bool(host.container))
    servers = facts.serve.data.servers if facts.serve.data else []
    sizes = {server.name: None for server in servers if server.container and server.pids}
    for name, size in (sizes | {s.server: s.bytes for s in host.container_shm}).items():
        yield _judge_shm(row, name, "in its container", size, contained=True)


def _judge_shm(row: Row, name: str, where: str, size: int | None, *, contained: bool) -> Finding:
    if size is None:
        text = f"The size of {SHM} {where} cannot be told: run again with sudo."
        return row.unknown(text, subject=name)
    text = f"{SHM} has {size // _MIB} MiB {where}"
    seen = Evidence(SHM, f"{size // _MIB} MiB, {where}")
    if contained and size < _TOO_SMALL:
        return row.fail(f"{text}.", seen, subject=name)
    say = row.warn if size < _SMALL else row.ok
    return say(f"{text}.", seen, subject=name)


@check("ctk-reload")
def ctk_reload(facts: Facts, row: Row) -> Finding:
    """A reload of systemd sets a container's devices anew, and only those that it can name."""
    containers, host = facts.containers.need(), facts.host.need()
    if host.container:
        return _inside(row, host.container, facts.nvml.data)
    systemd = [driver for driver in containers.cgroup_drivers if driver.name == "systemd"]
    seen = [Evidence(driver.source, f"{driver.runtime}: {driver.name}") for driver in systemd]
    if not containers.runtimes:
        return row.ok("No container runtime is installed.")
    if containers.toolkit_version is None and not containers.toolkit_problem:
        return row.ok("No container gets GPUs: nvidia-container-toolkit is not installed.")
    unread = [driver for driver in containers.cgroup_drivers if driver.problem]
    if not systemd and unread:
        return row.unknown(f"The cgroup driver of {unread[0].runtime}: {unread[0].problem}.")
    if not systemd:
        return row.ok("No container runtime leaves the cgroups of its containers to systemd.")
    if containers.cdi_specs:
        return row.ok(f"CDI names the devices: {', '.join(containers.cdi_specs)}.", *seen)
    if containers.unlinked is None:
        return row.unknown(f"{containers.unlinked_problem}.", *seen)
    if not containers.unlinked:
        return row.ok("Every NVIDIA device has its link in /dev/char.", *seen)
    names = ", ".join(driver.runtime for driver in systemd)
    return row.warn(
        f"{names}: the next systemctl daemon-reload takes the GPUs from running containers,"
        f" because /dev/char has no link to {', '.join(containers.unlinked)}.",
        *seen,
        Evidence("/dev/char", f"{len(containers.unlinked)} NVIDIA devices without a link"),
        steps=_steps(containers),
    )


def _inside(row: Row, container: str, nvml: NvmlFacts | None) -> Finding:
    if nvml is None:
        raise Missing("NVML was not asked whether this container still has its GPUs")
    refused = [nvml.init_error, *(gpu.handle_error for gpu in nvml.gpus)]
    lost = [error for error in refused if error and error.error == _UNKNOWN_ERROR]
    if lost:
        text = f"This {container} container has lost its GPUs: NVML says {lost[0].text}."
        return row.fail(text, Evidence("NVML", str(lost[0])))
    if nvml.init_error:
        return row.unknown(f"NVML does not start in this container: {nvml.init_error}.")
    return row.ok(f"This {container} container has its GPUs; the host's setup shows only there.")


def _steps(containers: ContainersFacts) -> list[Step]:
    """Link now, and whenever the driver is loaded (NVIDIA/nvidia-docker #1730)."""
    if not containers.ctk_path:
        return []
    command = " ".join([containers.ctk_path, *_LINK[1:]])
    rule = f'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="{command}"\n'
    return [Step(run=_LINK), Step(write=_UDEV_RULE, content=rule)]


@check("mps")
def mps(facts: Facts, row: Row) -> Finding:
    """With the directory there every CUDA program waits for a daemon, or fails."""
    processes, host = facts.processes.need(), facts.host.need()
    if host.mps_directories is None:
        raise Missing("The snapshot does not tell the MPS pipe directories")
    if not host.mps_directories:
        return row.ok("There is no MPS pipe directory.")
    # The kernel keeps 15 bytes of a name, so that the daemon's and its server's may look alike.
    alive = [tool for tool in processes.tools if tool.name.startswith("nvidia-cuda-mps")]
    seen = [Evidence(path, "exists") for path in host.mps_directories]
    if alive:
        return row.ok(f"{alive[0].name} runs (pid {alive[0].pid}).", *seen)
    if host.container:
        text = f"{host.mps_directories[0]} is there, and this container may not see its daemon."
        return row.unknown(text, *seen)
    aside = [(path, f"{path}.stale") for path in host.mps_directories]
    return row.warn(
        f"No nvidia-cuda-mps-control runs, and there is {', '.join(host.mps_directories)}.",
        *seen,
        steps=[Step(run=["mv", "-T", p, to], undo=["mv", "-T", to, p]) for p, to in aside],
    )
