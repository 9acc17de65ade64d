"""Variables that a server should not be started with."""

from collections.abc import Iterable, Iterator

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import gpus
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import (
    allotted,
    environment,
    groups,
    named,
    passed_in,
    per_server,
    select,
    size,
    tensor_parallel,
    told,
    without_variables,
)
from volta_doctor.checks.topology import Links
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts
from volta_doctor.facts.serve import Server
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several

# NVIDIA/DCGM, checkForBadEnvVaribles
_DEBUG = (
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_COREDUMP_FILE",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
)


def _assignments(server: Server, names: Iterable[str]) -> list[Evidence]:
    env = environment(server)
    return [Evidence(f"environment of {server.name}", f"{name}={env[name]}") for name in names]


@check("cuda-env")
def cuda_env(facts: Facts, row: Row) -> Iterator[Finding]:
    """A variable left over from debugging slows every kernel or stops at the first error."""

    def judge(server: Server) -> Finding:
        found = [name for name in _DEBUG if name in environment(server)]
        if not found:
            return row.ok("No debug or profiling variable is set.", subject=server.name)
        steps = without_variables(server, row.id, found)
        text = f"Set for the server: {', '.join(found)}."
        return row.warn(text, *_assignments(server, found), subject=server.name, steps=steps)

    return per_server(facts, row, judge)


@check("nccl-env")
def nccl_env(facts: Facts, row: Row) -> Iterator[Finding]:
    """Over PCIe and host memory a tensor-parallel group runs at a fraction of NVLink's speed."""
    links = Links(facts.topo.need())

    def judge(server: Server) -> Finding:
        if tensor_parallel(server) == 1:
            text = "Its tensor-parallel size is 1: NCCL joins no GPUs."
            return row.ok(text, subject=server.name)
        settings = server.nccl_conf | environment(server)
        off = [name for name, value in settings.items() if _turns_p2p_off(name, value)]
        joined = [group for group in groups(facts, server) if links.any_nvlink(group)]
        if off and joined:
            text = f"{', '.join(off)} turns off the NVLinks between {named(joined[0])}."
            seen = [Evidence(_origin(server, name), f"{name}={settings[name]}") for name in off]
            from_env = [name for name in off if name in environment(server)]
            steps = without_variables(server, row.id, from_env) if from_env == off else []
            return row.warn(text, *seen, subject=server.name, steps=steps)
        if server.nccl_problem:
            return row.unknown(f"{server.nccl_problem}.", subject=server.name)
        if server.nccl_files:
            shown = " ".join(f"{name}={value}" for name, value in server.nccl_conf.items())
            seen = [Evidence(path, shown or "no variable") for path in server.nccl_files]
            text = f"{' and '.join(server.nccl_files)} sets NCCL's variables."
            return row.info(text, *seen, subject=server.name)
        if off:
            text = f"{', '.join(off)} is set, but {named(groups(facts, server)[0])} have no NVLink."
            return row.ok(text, subject=server.name)
        return row.ok("No variable turns peer-to-peer access off.", subject=server.name)

    return per_server(facts, row, judge)


def _turns_p2p_off(name: str, value: str) -> bool:
    if name == "NCCL_P2P_DISABLE":
        return value.strip() not in ("", "0")
    return name == "NCCL_P2P_LEVEL" and value.strip().upper() in ("LOC", "0")


def _origin(server: Server, name: str) -> str:
    own = name in environment(server)
    return f"environment of {server.name}" if own else ", ".join(server.nccl_files)


@check("visible-devices")
def visible_devices(facts: Facts, row: Row) -> Iterator[Finding]:
    """CUDA stops reading the list at the first device that does not exist."""
    every = gpus(facts)

    def judge(server: Server) -> Finding:
        env, wanted = environment(server), size(server)
        lists = {"CUDA_VISIBLE_DEVICES": allotted(server, every)}
        if server.container:
            lists = {"NVIDIA_VISIBLE_DEVICES": every} | lists
        lists = {variable: among for variable, among in lists.items() if variable in env}
        seen = _assignments(server, lists)
        for variable, among in lists.items():
            if fault := _fault(variable, env[variable], among, wanted):
                return row.fail(fault, *seen, subject=server.name)
        if len(every) < wanted:
            text = f"The server is to use {several(wanted, 'GPU')}; this host has {len(every)}."
            return row.fail(text, told(server), subject=server.name)
        if not lists:
            text = f"No list is set: it may use every GPU ({len(every)})."
            return row.ok(text, subject=server.name)
        text = f"Every GPU listed exists, and {wanted} or more are listed."
        return row.ok(text, *seen, subject=server.name)

    return per_server(facts, row, judge)


def _fault(variable: str, text: str, among: list[GpuFacts], wanted: int) -> str | None:
    """Say what is wrong with a list of devices. Raises Missing for MIG devices."""
    in_container = variable == "NVIDIA_VISIBLE_DEVICES"
    chosen = passed_in(text, among) if in_container else select(text, among)
    if chosen.mig:
        raise Missing(f"{variable} names MIG devices, which NVML's list of GPUs does not show.")
    if chosen.unknown:
        there = {0: "none", 1: "GPU 0 only"}.get(len(among), f"GPUs 0 to {len(among) - 1}")
        return f"{variable} names {', '.join(chosen.unknown)}; the server may see {there}."
    if len({gpu.index for gpu in chosen.gpus}) < len(chosen.gpus):
        return f"{variable} names a GPU twice, with which CUDA does not start: {text}."
    if len(chosen.gpus) < wanted and not (in_container and text == "void"):
        listed = several(len(chosen.gpus), "GPU")
        return f"{variable} lists {listed}, and the server is to use {wanted}."
    return None
