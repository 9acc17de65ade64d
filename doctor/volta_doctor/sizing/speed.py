"""How fast a model will be: the roofline (step.py) times what engines were seen to reach of it.

An engine's shares of it and its latencies are ranges with their sources, in catalog/engines/.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from volta_doctor.catalog.compatibility import Card
from volta_doctor.catalog.engines import Efficiency, Engine, Latency
from volta_doctor.facts.model import Missing
from volta_doctor.sizing.step import Setup, Side, Step, prompt, step
from volta_doctor.sizing.work import work_of
from volta_runtime.checkpoint import Checkpoint

# One all-reduce of one token between GPUs, in seconds, by whether they have NVLinks. The README of
# 1Cat-vLLM has TP 4 at 86.3 tokens/s with its own all-reduce and at 75.9 with NCCL's: 12 µs for
# each of the 128.
_WAIT = {True: (6e-6, 25e-6), False: (20e-6, 80e-6)}
# Which part of a link's bytes a second NCCL moves; over PCIe it may go through the host, twice.
_LINK = {True: (0.3, 0.8), False: (0.3, 0.7)}
_HOP = (20e-6, 60e-6)  # one layer's output to the GPU that has the next
_WIDER = 1.15  # what a share of another format is widened by, on both sides


@dataclass(frozen=True)
class Range:
    """From the least to the most that is to be expected."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{_short(self.low)} to {_short(self.high)}"


@dataclass(frozen=True)
class Speed:
    """Tokens a second.

    decode: of one request alone. decode_each, decode_all: of each and of all at the asked
    concurrency. prefill: of a prompt as long as the context. bound: what takes most of a step then.
    limit: of one request, were nothing but bandwidth in the way. explained: the sums in words.
    sources: of every share and latency that was used.
    """

    decode: Range
    decode_each: Range
    decode_all: Range
    prefill: Range
    bound: str
    limit: float
    explained: tuple[str, ...]
    sources: tuple[str, ...]

    def answers(self, prompt: int, answer: int, concurrency: int) -> Range:
        """Generated tokens a second of requests that come at once, their prompts included."""

        def rate(prefill: float, decode: float) -> float:
            return concurrency * answer / (concurrency * prompt / prefill + answer / decode)

        return Range(
            rate(self.prefill.low, self.decode_each.low),
            rate(self.prefill.high, self.decode_each.high),
        )


def speed(
    checkpoint: Checkpoint,
    engine: Engine,
    card: Card,
    *,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    context: int,
    concurrency: int = 1,
    linked: bool = True,
    kv_cache: str = "auto",
    eager: bool = False,
) -> Speed:
    """Work out how fast an engine will be with a model on GPUs of one kind.

    tensor_parallel counts the GPUs, whether the engine splits layers or deals them out;
    expert_parallel those that whole experts are dealt to. linked: whether all of them have NVLinks
    to each other. kv_cache: as the engine's flag names it. eager: without CUDA graphs.

    Raises Missing naming what the checkpoint does not tell.
    """
    cache = engine.cache(kv_cache)
    if cache is None:
        raise Missing(f"{engine.title} has no KV cache type {kv_cache}.")
    split = tensor_parallel if engine.shards == "tensor" else 1
    nvlink = linked and card.nvlink_gbs > 0
    setup = Setup(
        work=work_of(checkpoint),
        card=card,
        engine=engine,
        gpus=tensor_parallel,
        split=split,
        dealt=min(expert_parallel, split) if engine.expert_parallel else 1,
        context=max(1, context),
        value_bytes=cache.bytes,
        link_bytes=(card.nvlink_gbs if nvlink else card.pcie_gbs) * 1e9,
    )
    rows = _rows(setup, cache.name, engine.memory.graphs and not eager)
    bad, good = _side(setup, rows, nvlink, good=False), _side(setup, rows, nvlink, good=True)
    worst = step(setup, bad, concurrency)
    each = Range(1 / worst.total, 1 / step(setup, good, concurrency).total)
    limit = setup.bandwidth / (sum(setup.read(1, good=True).values()) + setup.past)
    return Speed(
        decode=Range(1 / step(setup, bad, 1).total, 1 / step(setup, good, 1).total),
        decode_each=each,
        decode_all=Range(each.low * concurrency, each.high * concurrency),
        prefill=Range(setup.context / prompt(setup, bad), setup.context / prompt(setup, good)),
        bound=worst.bound,
        limit=limit,
        explained=tuple(_explain(setup, rows, worst, concurrency, limit)),
        sources=tuple(dict.fromkeys(row.source for row in rows.all)),
    )


class _Share(NamedTuple):
    """A row, and whether it was measured with just this."""

    row: Efficiency
    own: bool

    def at(self, good: bool) -> float:
        wider = 1.0 if self.own else _WIDER
        return min(1.0, self.row.high * wider) if good else self.row.low / wider


class _Rows(NamedTuple):
    """What a set-up is reckoned with, by format."""

    decode: dict[str, _Share]
    prefill: dict[str, _Share]
    past: _Share
    latency: Latency

    @property
    def all(self) -> Iterator[Efficiency | Latency]:
        for share in (*self.decode.values(), *self.prefill.values(), self.past):
            yield share.row
        yield self.latency


def _rows(setup: Setup, cache: str, graphs: bool) -> _Rows:
    engine, experts = setup.engine, bool(setup.work.experts.weights)
    formats = sorted(setup.work.formats)
    return _Rows(
        decode={n: _Share(*engine.measured("decode", n, experts, 1)) for n in formats},
        prefill={
            n: _Share(*engine.measured("prefill", n, experts, setup.context)) for n in formats
        },
        past=_Share(*engine.measured("past", cache, experts, 1)),
        latency=engine.latency_of(graphs, experts),
    )


def _side(setup: Setup, rows: _Rows, nvlink: bool, *, good: bool) -> Side:
    latency = rows.latency
    gain = 1.0
    if setup.engine.shards == "layer":  # steps follow each other over the GPUs, as in a pipeline
        steps = ceil(setup.context / setup.engine.memory.step_tokens)
        gain = steps * setup.gpus / (steps + setup.gpus - 1)
    return Side(
        good=good,
        decode={name: share.at(good) for name, share in rows.decode.items()},
        prefill={name: share.at(good) for name, share in rows.prefill.items()},
        past=rows.past.at(good),
        layer=(latency.low_us if good else latency.high_us) * 1e-6,
        sequence=(latency.each_low_us if good else latency.each_high_us) * 1e-6,
        wait=_WAIT[nvlink][0 if good else 1],
        link=setup.link_bytes * _LINK[nvlink][1 if good else 0],
        hop=_HOP[0 if good else 1],
        expert=(latency.expert_low_us if good else latency.expert_high_us) * 1e-6,
        gain=gain if good else max(1.0, gain / 1.5),  # two gave 1.0, 1.3 and 1.5 times
    )


def _explain(
    setup: Setup, rows: _Rows, worst: Step, concurrency: int, limit: float
) -> Iterable[str]:
    read = sum(setup.read(1, good=True).values())
    where = "on each GPU" if setup.split > 1 else "in all"
    yield (
        f"A token reads {read / 1e9:.2f} GB of weights and {setup.past / 1e9:.2f} GB of its past"
        f" {where}: {setup.card.bandwidth_gbs:.0f} GB/s allow {_short(limit)} tokens/s."
    )
    if setup.work.experts.weights:
        used = setup.work.touched(concurrency)
        yield f"{_tokens(concurrency)} needs {used:.0%} of the experts."
    for name, share in rows.decode.items():
        if name == "dense" and len(rows.decode) > 1:
            continue
        near = "" if share.own else ", measured with another format"
        yield (
            f"{setup.engine.title} reads {name} at {share.at(False):.0%} to {share.at(True):.0%} of"
            f" that{near}: {share.row.measured}."
        )
    latency = rows.latency
    yield (
        f"Each layer costs {latency.low_us:.0f} to {latency.high_us:.0f} µs beside:"
        f" {latency.measured}."
    )
    yield (
        f"{_tokens(concurrency)} takes {worst.total * 1e3:.1f} ms at worst: memory"
        f" {worst.memory * 1e3:.1f}, arithmetic {worst.compute * 1e3:.1f}, kernels"
        f" {worst.kernels * 1e3:.1f}, links {worst.links * 1e3:.1f}."
    )


def _tokens(concurrency: int) -> str:
    return "A step" if concurrency == 1 else f"A step of {concurrency} requests"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"
