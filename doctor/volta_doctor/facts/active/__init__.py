"""The `active` section: what the opt-in measurements found; they load the GPUs.

The measuring is done by scripts (volta_doctor/active/) in the Python that serves, since what counts
is what its torch gets out of the cards. This process never imports torch.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import msgspec

from volta_doctor.facts import serve
from volta_doctor.facts.nvml import NvmlFacts, value
from volta_doctor.facts.nvml import collect as collect_nvml
from volta_doctor.facts.release import current_release
from volta_doctor.probe import CannotLook, Probe

T = TypeVar("T")

LOAD_S = 30.0
SETTLED_S = 10.0  # of the load: clocks still fall in them; the rest is averaged
LIMIT_S = 600.0
_SCRIPT_S = 120.0
_START_S = 60.0  # torch's import and the first product on a slow disk and many cards
_UNSEEN_BYTES = 500 << 20  # as ghost-mem has it; drivers hold less
_KEPT_OUTPUT = 2000  # characters


class ActiveGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's figures: GB/s (1e9 bytes), MHz, and the relative error of a small tl.dot.

    `dot_error` is a text where Triton could not compile the product or the card not run it.
    `sm_mhz` is the mean SM clock over the last 20 of 30 s of FP16 matrix products. A figure that
    could not be had is None; `ActiveFacts.problems` says why.
    """

    uuid: str
    hbm_gbs: float | None = None
    to_gpu_gbs: float | None = None
    to_host_gbs: float | None = None
    sm_mhz: float | None = None
    dot_error: float | str | None = None


class PeerCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy from one GPU (NVML index) to another, and how many of its bytes arrived wrong."""

    source: int
    target: int
    wrong_bytes: int


class AllReduce(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce over all GPUs: bytes per rank, bus bandwidth in GB/s, wrong elements."""

    ranks: int
    bytes: int
    bus_gbs: float
    wrong_elements: int


class ActiveFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All measurements, by `python`.

    `problems` says for each script that gave no figures why. `dot_output` is what Triton printed.
    """

    python: str
    gpus: list[ActiveGpu]
    copies: list[PeerCopy] = []
    all_reduce: AllReduce | None = None
    dot_output: str = ""
    problems: dict[str, str] = {}


class Figures(NamedTuple):
    """What a measurement adds to each GPU, in NVML's order, and to the whole."""

    by_gpu: Sequence[Mapping[str, Any]] = ()
    whole: Mapping[str, Any] = {}


class _Load(msgspec.Struct):
    began: float
    ended: float


class _Bandwidth(msgspec.Struct):
    hbm: float
    to_gpu: float
    to_host: float


class _Peers(msgspec.Struct):
    copies: list[PeerCopy]
    all_reduce: AllReduce | None


def choose_python(probe: Probe) -> str:
    """Return the Python that serves, else the release's, else this one. Raises CannotLook."""
    for server in _servers(probe):
        if server.python:
            return server.python
    with contextlib.suppress(CannotLook):
        return f"{current_release(probe)}/venv/bin/python"
    if find_spec("torch"):
        return sys.executable
    raise CannotLook("no server and no release is here, and this Python has no torch")


def refuse_beside_others(probe: Probe, nvml: NvmlFacts) -> None:
    """Raise CannotLook where a program uses a GPU or will soon: measuring would slow it, and lie.

    A server that is loading its model is on no GPU yet, and a container does not see the processes
    of others.
    """
    if nvml.init_error:
        raise CannotLook(f"NVML did not start: {nvml.init_error.text}")
    for gpu in nvml.gpus:
        users, used = value(gpu.compute_processes), value(gpu.memory.used) or 0
        if users is None:
            raise CannotLook(f"refused: NVML does not tell who uses GPU {gpu.index}")
        if users:
            pids = ", ".join(str(process.pid) for process in users)
            raise CannotLook(
                f"refused: GPU {gpu.index} is in use (pid {pids}); stop what uses it, measure, and"
                " start it again"
            )
        if used > _UNSEEN_BYTES:
            raise CannotLook(
                f"refused: {used >> 20} MiB of GPU {gpu.index} are in use by a program that is not"
                " seen from here"
            )
    for server in _servers(probe):
        if server.pids and server.flags.device != "cpu":
            raise CannotLook(
                f"refused: {server.name} runs (pid {server.pids[0]}); stop it, measure, and start"
                " it again"
            )


def _servers(probe: Probe) -> list[serve.Server]:
    try:
        return probe.once(serve.find).servers
    except CannotLook:
        return []


def command(probe: Probe, python: str, script: str, *args: str) -> list[str]:
    """Return the command of a script; root does not run a Python that another user can change.

    Raises CannotLook where there is no such Python.
    """
    owner = probe.stat(python)
    if owner is None:
        raise CannotLook(f"{python}: No such file or directory")
    as_owner = ["setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
    # NVML numbers the cards by bus id, CUDA by speed unless it is told.
    environment = ["env", "-u", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    path = str(files("volta_doctor") / "active" / f"{script}.py")
    drop = as_owner if probe.is_root and owner.st_uid else []
    return [*drop, *environment, python, "-I", path, *args]


def run(
    probe: Probe, python: str, script: str, *args: str, kind: type[T], limit: float = _SCRIPT_S
) -> tuple[T, str]:
    """Run a script: its figures and what it printed beside them. Raises CannotLook."""
    done = probe.run(*command(probe, python, script, *args), limit=limit)
    if done.exit_code != 0:
        raise CannotLook(f"{script}.py, run by {python}, failed: {last_line(done.complaint)}")
    try:
        return msgspec.json.decode(last_line(done.stdout), type=kind), done.stderr
    except msgspec.DecodeError as error:
        raise CannotLook(f"{script}.py printed no figures: {error}") from error


def last_line(text: str) -> str:
    """Return the last line: a traceback's is the error itself."""
    return (text.strip().splitlines() or [""])[-1]


def matched(figures: list[Any], nvml: NvmlFacts, script: str) -> list[Any]:
    """Return a script's list, which must have an entry for each of NVML's GPUs."""
    if len(figures) != len(nvml.gpus):
        raise CannotLook(f"{script}.py saw {len(figures)} GPUs, NVML {len(nvml.gpus)}")
    return figures


def measure_bandwidth(probe: Probe, python: str, nvml: NvmlFacts) -> Figures:
    """Copy within each GPU, and between it and the host."""
    rates, _ = run(probe, python, "bandwidth", kind=list[_Bandwidth])
    return Figures(
        [
            {"hbm_gbs": round(r.hbm, 1), "to_gpu_gbs": round(r.to_gpu, 2)}
            | {"to_host_gbs": round(r.to_host, 2)}
            for r in matched(rates, nvml, "bandwidth")
        ]
    )


def measure_clocks(probe: Probe, python: str, nvml: NvmlFacts) -> Figures:
    """Load all GPUs at once and watch their clocks."""
    from volta_doctor.facts.active import sm_clocks

    limit = LOAD_S + _START_S
    with sm_clocks.sampled() as samples:
        load, _ = run(probe, python, "load", str(LOAD_S), kind=_Load, limit=limit)
    means = sm_clocks.means(samples, load.began + SETTLED_S, load.ended)
    return Figures([{"sm_mhz": mean} for mean in matched(means, nvml, "load")])


def measure_peers(probe: Probe, python: str, nvml: NvmlFacts) -> Figures:
    """Copy between all GPUs; with a single one there is nothing to copy."""
    if len(nvml.gpus) < 2:
        return Figures()
    peers, _ = run(probe, python, "peers", kind=_Peers)
    return Figures(whole={"copies": peers.copies, "all_reduce": peers.all_reduce})


def measure_dot(probe: Probe, python: str, nvml: NvmlFacts) -> Figures:
    """Compile and run a small Triton kernel."""
    dot_errors, output = run(probe, python, "triton_dot", kind=list[float | str])
    return Figures(
        [{"dot_error": error} for error in matched(dot_errors, nvml, "triton_dot")],
        {"dot_output": output.strip()[-_KEPT_OUTPUT:]},
    )


# In this order: a card that is hot from the load would copy no worse, but one at a time is clear.
MEASUREMENTS: Mapping[str, Callable[[Probe, str, NvmlFacts], Figures]] = {
    "bandwidth": measure_bandwidth,
    "peers": measure_peers,
    "triton_dot": measure_dot,
    "load": measure_clocks,
}


def collect(probe: Probe) -> ActiveFacts:
    """Make every measurement that can be made. Raises CannotLook where a GPU is in use."""
    nvml = collect_nvml()
    refuse_beside_others(probe, nvml)
    python = choose_python(probe)
    gpus: list[dict[str, Any]] = [
        {"uuid": value(gpu.uuid) or f"GPU {gpu.index}"} for gpu in nvml.gpus
    ]
    whole: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, measure in MEASUREMENTS.items():
        try:
            figures = measure(probe, python, nvml)
        except CannotLook as reason:
            problems[name] = str(reason)
            continue
        whole |= figures.whole
        for gpu, figure in zip(gpus, figures.by_gpu, strict=False):
            gpu |= figure
    measured = [ActiveGpu(**gpu) for gpu in gpus]
    return ActiveFacts(python=python, gpus=measured, problems=problems, **whole)
