"""What the opt-in measurements say: figures against what the card should reach."""

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import Inapplicable, gpus, per_gpu, subject, told
from volta_doctor.checks.registry import check
from volta_doctor.facts.active import ActiveFacts, ActiveGpu
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several


class Limits(NamedTuple):
    """The least that a card should reach, GB/s; its name holds `part`."""

    part: str
    hbm: float
    host: float


# The first row that fits. hbm: NVIDIA/DCGM diag-skus.yaml.in; host: azurehpc-health-checks.
LIMITS = (
    Limits("V100S", 675.0, 10.0),
    Limits("V100-SXM3", 675.0, 9.0),
    Limits("V100-SXM2", 607.5, 9.0),
    Limits("V100-PCIE", 607.5, 10.0),
)
_NEAR = 1.05  # times the limit of the host link: the margin of a warning
_CLOCK_FAIL, _CLOCK_WARN = 0.65, 0.80  # of the maximum
_BEHIND = 0.90  # of the median of like cards
_DOT_TOLERANCE = 1e-2
_FMA_PATH = "Dot op using MMA for compute capability 70 has been deprecated"
_FULL_SIZE = 8 << 30  # bytes of the all-reduce that the limit is for
_BUS_GBS = 110.0


def measured(facts: Facts, script: str) -> ActiveFacts:
    """Return the section. Raises Missing where that measurement could not be made."""
    active = facts.active.need()
    if script in active.problems:
        raise Missing(active.problems[script])
    return active


def figures_of(facts: Facts, script: str, gpu: GpuFacts) -> ActiveGpu:
    """Return a card's figures. Raises Missing where they were not to be had."""
    for figures in measured(facts, script).gpus:
        if figures.uuid == subject(gpu):
            return figures
    raise Missing("It was not measured.")


def rates(facts: Facts, gpu: GpuFacts) -> tuple[Limits, tuple[float, float, float], Evidence]:
    """Return a card's limits and its rates: memory, to the GPU, to the host. Raises Missing.

    Raises Inapplicable for a card that nobody has measured.
    """
    name = told(gpu.name, "card's name")
    found = figures_of(facts, "bandwidth", gpu)
    memory, to_gpu, to_host = found.hbm_gbs, found.to_gpu_gbs, found.to_host_gbs
    if memory is None or to_gpu is None or to_host is None:
        raise Missing("It was not measured.")
    text = f"memory {memory:g}, host to GPU {to_gpu:g}, GPU to host {to_host:g} GB/s"
    limit = next((row for row in LIMITS if row.part in name), None)
    if limit is None:
        raise Inapplicable(f"No limit is known for {name}; measured: {text}.")
    seen = Evidence(f"bandwidth.py by {facts.active.need().python}", f"{name}: {text}")
    return limit, (memory, to_gpu, to_host), seen


@check("hbm-bw")
@per_gpu
def hbm_bw(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A card that is slow at rest of all else is throttled or damaged."""
    limit, (rate, _, _), seen = rates(facts, gpu)
    found = row.fail if rate < limit.hbm else row.ok
    return found(f"Memory moves {rate:g} GB/s; it should reach {limit.hbm:g} GB/s.", seen)


@check("bw-host")
@per_gpu
def bw_host(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """The slower direction counts."""
    limit, (_, *both), seen = rates(facts, gpu)
    rate = min(both)
    text = f"The slower direction moves {rate:g} GB/s; it should reach {limit.host:g} GB/s."
    if rate < limit.host:
        return row.fail(text, seen)
    found = row.warn if round(rate / limit.host, 4) < _NEAR else row.ok
    return found(text, seen)


@check("p2p-data")
def p2p_data(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """A link that reports success and delivers other bytes makes a model talk nonsense."""
    active = measured(facts, "peers")
    if len(gpus(facts)) < 2:
        return row.ok("There is one GPU.")
    if not active.copies or active.all_reduce is None:
        return row.unknown("No copy between GPUs was made.")
    wrong = [copy for copy in active.copies if copy.wrong_bytes]
    seen = [
        Evidence("peers.py", f"GPU {c.source} to {c.target}: {c.wrong_bytes} wrong bytes")
        for c in wrong
    ]
    reduced = active.all_reduce
    if reduced.wrong_elements:
        seen.append(Evidence("peers.py", f"all-reduce: {reduced.wrong_elements} wrong elements"))
    if seen:
        text = f"{len(wrong)} of {len(active.copies)} copies from GPU to GPU arrive damaged"
        wrong_sums = several(reduced.wrong_elements, "wrong element")
        return row.fail(f"{text}; the all-reduce has {wrong_sums}.", *seen)
    return row.ok(f"{len(active.copies)} copies from GPU to GPU and an all-reduce arrive whole.")


@check("nccl-bw")
def nccl_bw(facts: Facts, row: Row) -> Finding:
    """The limit is for one machine shape; for others the figure is worth knowing."""
    active, cards = measured(facts, "peers"), gpus(facts)
    if len(cards) < 2:
        return row.skip("There is one GPU, so nothing is reduced.")
    if active.all_reduce is None:
        return row.unknown("No all-reduce was made.")
    reduced = active.all_reduce
    text = f"{reduced.bus_gbs:.2f} GB/s bus bandwidth, {reduced.bytes / (1 << 30):.1f} GiB a rank"
    seen = Evidence("peers.py", f"{reduced.ranks} ranks: {text}")
    sxm2 = all("V100-SXM2" in (value(gpu.name) or "") for gpu in cards)
    if not (sxm2 and len(cards) == 8 and reduced.bytes >= _FULL_SIZE):
        return row.info(f"{text}; no limit is known for this machine and size.", seen)
    found = row.fail if reduced.bus_gbs < _BUS_GBS else row.ok
    return found(f"{text}; it should reach {_BUS_GBS:g} GB/s.", seen)


@check("clock-under-load")
@per_gpu
def clock_under_load(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Compare with the card's own maximum, then with its like in this host."""
    figures = {each.uuid: each.sm_mhz for each in measured(facts, "load").gpus}
    mean, highest = figures.get(subject(gpu)), told(gpu.clocks_max.sm, "highest SM clock")
    if mean is None:
        raise Missing("Its clock under load was not measured.")
    alike = [each for each in gpus(facts) if value(each.name) == value(gpu.name)]
    clocks = [mhz for each in alike if (mhz := figures.get(subject(each))) is not None]
    middle = median(clocks)
    text = f"{mean:g} of {highest} MHz under load"
    seen = Evidence("NVML during load.py", f"{text}; median of {len(clocks)} alike: {middle:g}")
    for share, verdict in ((_CLOCK_FAIL, row.fail), (_CLOCK_WARN, row.warn)):
        if mean < share * highest:
            return verdict(f"{text}; it should hold {share * highest:g} MHz ({share:.0%}).", seen)
    if mean < middle * _BEHIND:
        behind = f"{text}, more than 10 % below the {middle:g} MHz of its like."
        return row.warn(behind, seen)
    return row.ok(f"{text}.", seen)


@check("triton")
def triton(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """Triton below its own minimum capability may refuse, be slow, or answer zeros."""
    problem = facts.active.need().problems.get("triton_dot", "")
    if "No module named 'triton'" in problem:
        return row.skip("Triton is not installed where the server runs.")
    return _dot(facts, row)


@per_gpu
def _dot(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    error = figures_of(facts, "triton_dot", gpu).dot_error
    if error is None:
        raise Missing("It was not measured.")
    if isinstance(error, str):
        return row.fail(
            "Triton cannot compile or run a small matrix product (tl.dot).",
            Evidence("triton_dot.py", error),
        )
    seen = Evidence("triton_dot.py", f"relative error {error:.1e}")
    if not error <= _DOT_TOLERANCE:  # a NaN is wrong too
        text = f"Triton's matrix product (tl.dot) is wrong: relative error {error:.1e}"
        return row.fail(f"{text}, tolerated {_DOT_TOLERANCE:g}.", seen)
    if _FMA_PATH in facts.active.need().dot_output:
        text = "Triton's matrix product (tl.dot) is right, but made without tensor cores: slow."
        return row.warn(text, seen, Evidence("triton_dot.py", _FMA_PATH))
    return row.ok(f"Triton's matrix product is right: relative error {error:.1e}.", seen)
