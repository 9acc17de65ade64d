"""Servers as checks see them: one finding each, and which GPUs a server uses."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.gpu import gpus
from volta_doctor.checks.steps import unit_drop_in
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.facts.serve import Server
from volta_doctor.findings import Evidence, Finding, Step
from volta_doctor.words import several

# Engines that are run on the CPU by hiding the GPUs from them.
_DO_WITHOUT = ("llamacpp", "ollama")
Judge = Callable[[Server], Finding | Iterable[Finding]]


def per_server(facts: Facts, row: Row, judge: Judge) -> Iterator[Finding]:
    """Judge each server that uses GPUs; what a server does not tell becomes its verdict unknown."""
    serve = facts.serve.need()
    if not serve.servers:
        if serve.problem:
            yield row.unknown(f"No server of language models was found, but {serve.problem}.")
        else:
            yield row.skip("No server of language models was found.")
    for server in serve.servers:
        if on_cpu(server):
            yield row.skip("It is told to run on the CPU.", subject=server.name)
            continue
        try:
            found = judge(server)
            yield from [found] if isinstance(found, Finding) else list(found)
        except Missing as reason:
            yield row.unknown(str(reason), subject=server.name)


def on_cpu(server: Server) -> bool:
    """Say whether a server was told to run on the CPU, by a flag or by hiding all GPUs from it."""
    hidden = (server.env or {}).get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return server.flags.device == "cpu" or (hidden and server.engine in _DO_WITHOUT)


def environment(server: Server) -> dict[str, str]:
    """Return a server's environment. Raises Missing where this user may not see it."""
    if server.env is None:
        raise Missing(f"The server's environment cannot be seen ({server.env_problem}).")
    return server.env


def told(server: Server) -> Evidence:
    """Show how the server was started."""
    return Evidence(server.source, " ".join(server.argv))


def without_variables(server: Server, check_id: str, names: Iterable[str]) -> list[Step]:
    """Return the steps that keep variables from a unit's processes, wherever they are set."""
    return _drop_in(server, check_id, f"UnsetEnvironment={' '.join(names)}")


def with_variable(server: Server, check_id: str, name: str, value: str) -> list[Step]:
    """Return the steps that give a variable to a unit's processes."""
    return _drop_in(server, check_id, f"Environment={name}={value}")


def _drop_in(server: Server, check_id: str, setting: str) -> list[Step]:
    """None for what is no unit of the system's: who started it knows how to start it again."""
    if server.unit is None or "/systemd/system/" not in server.source:
        return []
    return unit_drop_in(check_id, server.unit, f"[Service]\n{setting}")


class Selection(NamedTuple):
    """What a list of devices selects: GPUs in its order, entries that are no GPU, MIG entries."""

    gpus: list[GpuFacts]
    unknown: list[str]
    mig: list[str]


def select(text: str, among: list[GpuFacts]) -> Selection:
    """Read a list as CUDA_VISIBLE_DEVICES takes it: indices, UUIDs and beginnings of UUIDs.

    The first entry that is no device ends the list; -1 is such an entry by intent (CUDA
    programming guide, "CUDA environment variables"; so does driver 580.159.04).
    """
    found: list[GpuFacts] = []
    unknown: list[str] = []
    mig: list[str] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if entry == "-1":
            break
        chosen: list[GpuFacts] = []
        if entry.isdigit():
            chosen = among[int(entry) : int(entry) + 1]
        elif entry.startswith("MIG-"):
            mig.append(entry)
            continue
        elif entry.startswith("GPU-"):
            named = [gpu for gpu in among if (value(gpu.uuid) or "").startswith(entry)]
            chosen = named if len(named) == 1 else []
        unknown += [] if chosen else [entry]
        found += [] if unknown else chosen
    return Selection(found, unknown, mig)


def passed_in(text: str, among: list[GpuFacts]) -> Selection:
    """Read a list as NVIDIA_VISIBLE_DEVICES takes it, which knows words for all and for none.

    Source: NVIDIA Container Toolkit, "Environment variables".
    """
    if text in ("all", "none", "void"):
        return Selection(among if text == "all" else [], [], [])
    return select(text, among)


def allotted(server: Server, among: list[GpuFacts]) -> list[GpuFacts]:
    """Return what a server's container lets it see; outside of one that is every GPU.

    With CDI a runtime sets NVIDIA_VISIBLE_DEVICES=void whatever it passes in.
    """
    given = environment(server).get("NVIDIA_VISIBLE_DEVICES")
    if not server.container or given in (None, "all", "void"):
        return among
    chosen = passed_in(given or "", among).gpus
    return [gpu for gpu in among if gpu in chosen]


def ambiguous(text: str, env: dict[str, str], among: list[GpuFacts]) -> bool:
    """Say whether indices may mean other cards than NVML's: CUDA counts the fastest first."""
    names = {value(gpu.name) for gpu in among}
    by_index = any(part.strip().isdigit() for part in text.split(","))
    return by_index and len(names) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def held(server: Server, among: list[GpuFacts]) -> list[GpuFacts]:
    """Return the GPUs on which the server's processes have memory."""
    pids = set(server.pids)
    return [gpu for gpu in among if pids & {p.pid for p in value(gpu.compute_processes) or []}]


def size(server: Server) -> int:
    """Return how many GPUs a server was told to use: its ranks."""
    return tensor_parallel(server) * (server.flags.pipeline_parallel_size or 1)


def tensor_parallel(server: Server) -> int:
    """Return the tensor-parallel size; every engine's default is 1."""
    return server.flags.tensor_parallel_size or 1


def ranks(facts: Facts, server: Server) -> list[GpuFacts]:
    """Return a server's GPUs in the order of its ranks.

    Those are the first that it may see; where that is not known, those that it holds. Raises
    Missing where neither tells, or it may see too few.
    """
    among, wanted = gpus(facts), size(server)
    holds = held(server, among)
    if server.env is None and len(holds) == wanted:
        return holds
    env = environment(server)
    visible = allotted(server, among)
    if (text := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        if ambiguous(text, env, visible):
            if len(holds) == wanted:
                return holds
            raise Missing(
                f"CUDA_VISIBLE_DEVICES={text} counts GPUs of several kinds, the fastest first:"
                " set CUDA_DEVICE_ORDER=PCI_BUS_ID or name them by UUID."
            )
        visible = select(text, visible).gpus
    if len(visible) < wanted:
        raise Missing(f"It is to use {several(wanted, 'GPU')}, but may see {len(visible)}.")
    if not server.flags.tensor_parallel_size and len(holds) > wanted:
        return holds  # an engine that spreads layers by itself
    return visible[:wanted]


def groups(facts: Facts, server: Server) -> list[list[GpuFacts]]:
    """Return the GPUs of each tensor-parallel group. Raises Missing as `ranks` does."""
    found, width = ranks(facts, server), tensor_parallel(server)
    return [found[start : start + width] for start in range(0, len(found), width)]


def label(gpu: GpuFacts) -> str:
    """Name a GPU in a sentence, as nvidia-smi numbers it."""
    return f"GPU {gpu.index}"


def named(members: Iterable[GpuFacts]) -> str:
    """Name GPUs in a sentence: GPUs 0, 1."""
    numbers = [str(gpu.index) for gpu in members]
    return f"GPU{'s' if len(numbers) != 1 else ''} {', '.join(numbers)}"


def on_volta(facts: Facts, server: Server) -> bool:
    """Say whether a server uses a Volta card. Raises Missing on a mixed host as `ranks` does."""
    nvml, volta = facts.nvml.data, compat().volta.compute_capability
    told = {value(gpu.compute_capability) for gpu in nvml.gpus} - {None} if nvml else set()
    if told <= {volta}:  # the judge has seen to it that there is one
        return True
    return any(value(gpu.compute_capability) == volta for gpu in ranks(facts, server))
