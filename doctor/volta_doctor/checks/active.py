"""What the opt-in measurements say: figures against what the card should reach."""

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import gpus, subject
from volta_doctor.checks.registry import check
from volta_doctor.facts.active import ActiveFacts, ActiveGpu
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.findings import Evidence, Finding


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


def limits(gpu: GpuFacts) -> Limits | None:
    """Return the row for a card, None where nobody has measured such cards."""
    name = value(gpu.name) or ""
    return next((row for row in LIMITS if row.part in name), None)


def measured(facts: Facts, script: str) -> ActiveFacts:
    """Return the section. Raises Missing where that measurement could not be made."""
    active = facts.active.need()
    if script in active.problems:
        raise Missing(active.problems[script])
    return active


def volta_cards(facts: Facts, script: str) -> Iterator[tuple[GpuFacts, ActiveGpu]]:
    """Yield each Volta card with its figures. Raises Missing."""
    figures = {gpu.uuid: gpu for gpu in measured(facts, script).gpus}
    for gpu in gpus(facts):
        if value(gpu.compute_capability) == "7.0":
            yield gpu, figures.get(subject(gpu), ActiveGpu(uuid=subject(gpu)))


def by_card(
    facts: Facts, row: Row, judge: Callable[[Limits, ActiveGpu, Evidence], Finding]
) -> Iterator[Finding]:
    """Judge the bandwidths of every Volta card that has limits."""
    python = facts.active.need().python
    for gpu, figures in volta_cards(facts, "bandwidth"):
        limit = limits(gpu)
        rates = (figures.hbm_gbs, figures.to_gpu_gbs, figures.to_host_gbs)
        if value(gpu.name) is None:
            yield row.unknown("NVML does not tell which card it is.", subject=figures.uuid)
        elif limit is None:
            text = f"No limit is known for {value(gpu.name)}; measured {rates} GB/s."
            yield row.skip(text, subject=figures.uuid)
        elif None in rates:
            yield row.unknown("It was not measured.", subject=figures.uuid)
        else:
            memory, to_gpu, to_host = rates
            text = f"{value(gpu.name)}: memory {memory}, to GPU {to_gpu}, to host {to_host} GB/s"
            yield judge(limit, figures, Evidence(f"bandwidth.py by {python}", text))


@check("hbm-bw")
def hbm_bw(facts: Facts, row: Row) -> Iterable[Finding]:
    """A card that is slow at rest of all else is throttled or damaged."""

    def judge(limit: Limits, figures: ActiveGpu, seen: Evidence) -> Finding:
        rate = figures.hbm_gbs or 0.0
        text = f"Memory moves {rate:g} GB/s, the limit is {limit.hbm:g}."
        found = row.fail if rate < limit.hbm else row.ok
        return found(text, seen, subject=figures.uuid)

    return by_card(facts, row, judge)


@check("bw-host")
def bw_host(facts: Facts, row: Row) -> Iterable[Finding]:
    """The slower direction counts."""

    def judge(limit: Limits, figures: ActiveGpu, seen: Evidence) -> Finding:
        rate = min(figures.to_gpu_gbs or 0.0, figures.to_host_gbs or 0.0)
        text = f"The slower direction moves {rate:g} GB/s, the limit is {limit.host:g}."
        if rate < limit.host:
            return row.fail(text, seen, subject=figures.uuid)
        found = row.warn if round(rate / limit.host, 4) < _NEAR else row.ok
        return found(text, seen, subject=figures.uuid)

    return by_card(facts, row, judge)


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
        text = f"{len(wrong)} of {len(active.copies)} peer copies arrive damaged"
        return row.fail(f"{text}; all-reduce: {reduced.wrong_elements} wrong elements.", *seen)
    return row.ok(f"{len(active.copies)} peer copies and an all-reduce arrive whole.")


@check("nccl-bw")
def nccl_bw(facts: Facts, row: Row) -> Finding:
    """The limit is for one machine shape; for others the figure is worth knowing."""
    active, cards = measured(facts, "peers"), gpus(facts)
    if len(cards) < 2:
        return row.skip("There is one GPU, so nothing is reduced.")
    if active.all_reduce is None:
        return row.unknown("No all-reduce was made.")
    reduced = active.all_reduce
    text = f"{reduced.bus_gbs:.1f} GB/s bus bandwidth, {reduced.bytes / (1 << 30):.1f} GiB a rank"
    seen = Evidence("peers.py", f"{reduced.ranks} ranks: {text}")
    sxm2 = all("V100-SXM2" in (value(gpu.name) or "") for gpu in cards)
    if not (sxm2 and len(cards) == 8 and reduced.bytes >= _FULL_SIZE):
        return row.info(f"{text}; no limit is known for this machine and size.", seen)
    found = row.fail if reduced.bus_gbs < _BUS_GBS else row.ok
    return found(f"{text}, the limit is {_BUS_GBS:g}.", seen)


@check("clock-under-load")
def clock_under_load(facts: Facts, row: Row) -> Iterable[Finding]:
    """Compare with the card's own maximum, then with its like in this host."""
    cards = list(volta_cards(facts, "load"))
    for gpu, figures in cards:
        name, highest, mean = value(gpu.name), value(gpu.clocks_max.sm), figures.sm_mhz
        if mean is None or not highest:
            yield row.unknown(
                "Its clock under load or its maximum is unknown.", subject=figures.uuid
            )
            continue
        like = [f.sm_mhz for g, f in cards if value(g.name) == name and f.sm_mhz is not None]
        middle, share = median(like), mean / highest
        text = f"{mean:.0f} of {highest} MHz under load ({share:.0%})"
        seen = Evidence("NVML during load.py", f"{text}; median of {len(like)} alike: {middle:.0f}")
        if share < _CLOCK_FAIL:
            yield row.fail(f"{text}, below {_CLOCK_FAIL:.0%}.", seen, subject=figures.uuid)
        elif share < _CLOCK_WARN:
            yield row.warn(f"{text}, below {_CLOCK_WARN:.0%}.", seen, subject=figures.uuid)
        elif mean < middle * _BEHIND:
            behind = f"{text}, more than 10 % below the {middle:.0f} MHz of its like."
            yield row.warn(behind, seen, subject=figures.uuid)
        else:
            yield row.ok(f"{text}.", seen, subject=figures.uuid)


@check("triton")
def triton(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """Triton below its own minimum capability may refuse, be slow, or answer zeros."""
    problem = facts.active.need().problems.get("triton_dot", "")
    if "No module named 'triton'" in problem:
        return row.skip("Triton is not installed where the server runs.")
    slow = _FMA_PATH in measured(facts, "triton_dot").dot_output
    return [_judge_dot(row, figures, slow) for _, figures in volta_cards(facts, "triton_dot")]


def _judge_dot(row: Row, figures: ActiveGpu, slow: bool) -> Finding:
    error, where = figures.dot_error, figures.uuid
    if error is None:
        return row.unknown("It was not measured.", subject=where)
    if isinstance(error, str):
        seen = Evidence("triton_dot.py", error)
        return row.fail("tl.dot does not compile or run.", seen, subject=where)
    seen = Evidence("triton_dot.py", f"relative error {error:.1e}")
    if not error <= _DOT_TOLERANCE:  # a NaN is wrong too
        text = f"tl.dot is wrong: relative error {error:.1e}, tolerated {_DOT_TOLERANCE:g}."
        return row.fail(text, seen, subject=where)
    if slow:
        said = Evidence("triton_dot.py", _FMA_PATH)
        return row.warn("Right, but without tensor cores: slow.", seen, said, subject=where)
    return row.ok(f"Right: relative error {error:.1e}.", seen, subject=where)
