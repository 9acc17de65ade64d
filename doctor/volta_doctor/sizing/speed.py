"""How fast a model will be: a roofline, and what engines were seen to reach of it.

A step reads the weights that its tokens need and their past (bytes over bandwidth), computes with
them (operations over the tensor cores' peak), starts kernels layer by layer, and waits for the
other GPUs twice a layer. An engine's shares and latencies are ranges with sources, in its file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import NamedTuple

from volta_doctor.catalog.compatibility import Card
from volta_doctor.catalog.engines import Efficiency, Engine, Latency
from volta_doctor.facts.model import Missing
from volta_doctor.sizing.work import Work, attention_flops, cache_bytes, missing, work
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.architecture import Architecture

# One all-reduce of one token between GPUs, in seconds. Over NVLink the README of 1Cat-vLLM has TP 4
# at 86.3 tokens/s with its own all-reduce and 75.9 with NCCL's, which is 12 µs for each of the 128.
_WAIT = {True: (6e-6, 25e-6), False: (20e-6, 80e-6)}
# Which part of a link's bytes a second NCCL moves; over PCIe it may go through the host, twice.
_LINK = {True: (0.3, 0.8), False: (0.3, 0.7)}
_HOP = (20e-6, 60e-6)  # one layer's output to the GPU that has the next
_WIDER = 1.2  # what a row for another format is widened by, on both sides


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


class _Side(NamedTuple):
    """One end of all ranges: the shares by format, and seconds."""

    decode: dict[str, float]
    prefill: dict[str, float]
    layer: float
    wait: float
    link: float
    hop: float
    gain: float  # of a prompt spread over GPUs that have layers each
    good: bool


@dataclass(frozen=True)
class _Setup:
    work: Work
    architecture: Architecture
    card: Card
    engine: Engine
    gpus: int
    split: int  # GPUs that share each layer
    dealt: int  # GPUs that whole experts are dealt to
    context: int
    value_bytes: float
    link_bytes: float

    @property
    def bandwidth(self) -> float:
        return self.card.bandwidth_gbs * 1e9

    @property
    def peak(self) -> float:
        return self.card.tensor_tflops * 1e12


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
    kv_cache: str = "",
    eager: bool = False,
) -> Speed:
    """Work out how fast an engine will be with a model on GPUs of one kind.

    tensor_parallel counts the GPUs, whether the engine splits layers or deals them out;
    expert_parallel those that whole experts are dealt to. linked: whether all of them have NVLinks
    to each other. kv_cache: a row of the engine's, empty for its
    first. Raises Missing naming what the checkpoint does not tell.
    """
    a = checkpoint.architecture
    if absent := [*missing(a)]:
        raise Missing(f"config.json does not tell {', '.join(absent)}")
    split = tensor_parallel if engine.shards == "tensor" else 1
    setup = _Setup(
        work=work(checkpoint.modules, a),
        architecture=a,
        card=card,
        engine=engine,
        gpus=tensor_parallel,
        split=split,
        dealt=min(expert_parallel, split) if engine.expert_parallel else 1,
        context=max(1, context),
        value_bytes=_value_bytes(engine, kv_cache),
        link_bytes=(card.nvlink_gbs if linked and card.nvlink_gbs else card.pcie_gbs) * 1e9,
    )
    linked = linked and card.nvlink_gbs > 0
    graphs = engine.memory.graphs and not eager
    rows = _rows(setup, graphs)
    bad, good = _side(setup, rows, linked, good=False), _side(setup, rows, linked, good=True)
    each = Range(
        1 / _step(setup, bad, concurrency).total, 1 / _step(setup, good, concurrency).total
    )
    parts = _step(setup, bad, concurrency)
    read = _bytes(setup, 1, good=True)
    limit = setup.bandwidth / (sum(read.values()) + _past(setup))
    return Speed(
        decode=Range(1 / _step(setup, bad, 1).total, 1 / _step(setup, good, 1).total),
        decode_each=each,
        decode_all=Range(each.low * concurrency, each.high * concurrency),
        prefill=Range(_prompt(setup, bad), _prompt(setup, good)),
        bound=parts.bound,
        limit=limit,
        explained=tuple(_explain(setup, rows, parts, concurrency, limit)),
        sources=tuple(dict.fromkeys(row.source for row in rows.all)),
    )


class _Step(NamedTuple):
    """Seconds of one step of decoding, by what they go to."""

    memory: float
    compute: float
    kernels: float
    links: float
    good: bool

    @property
    def total(self) -> float:
        # At best reading and computing overlap, at worst neither hides any of the other.
        busy = max(self.memory, self.compute) if self.good else self.memory + self.compute
        return busy + self.kernels + self.links

    @property
    def bound(self) -> str:
        words = ("memory bandwidth", "arithmetic", "starting kernels", "links between GPUs")
        seconds = (self.memory, self.compute, self.kernels, self.links)
        return words[seconds.index(max(seconds))]


def _step(setup: _Setup, side: _Side, tokens: int) -> _Step:
    """One token for each of so many sequences."""
    w, layers = setup.work, len(setup.architecture.layers)
    read = _bytes(setup, tokens, good=side.good)
    shares = side.decode
    memory = sum(size / shares[name] for name, size in read.items()) / setup.bandwidth
    memory += tokens * _past(setup) / min(shares.values()) / setup.bandwidth
    compute = sum(
        2 * tokens * count / side.prefill[name]
        for part, share in ((w.always, 1.0), (w.head, 1.0), (w.experts, w.chosen))
        for name, count in ((n, c * share) for n, c in part.weights.items())
    )
    compute /= setup.peak * setup.split
    links = 0.0
    if setup.split > 1:
        links = 2 * layers * (side.wait + _reduce_bytes(setup, tokens) / side.link)
    elif setup.gpus > 1:
        links = (setup.gpus - 1) * side.hop
    return _Step(memory, compute, layers * side.layer, links, side.good)


def _prompt(setup: _Setup, side: _Side) -> float:
    """Tokens a second of one prompt as long as the context."""
    w, a, tokens = setup.work, setup.architecture, setup.context
    steps = ceil(tokens / setup.engine.memory.step_tokens)
    shares = side.prefill
    operations = attention_flops(a, tokens) / max(shares.values())
    copies = 0.0
    for part, share in ((w.always, 1.0), (w.experts, w.chosen)):
        operations += sum(2 * n * share / shares[name] for name, n in part.weights.items())
        # An FP16 copy is written, then read by the matrix product.
        copies += sum(
            part.bytes[name] + 4 * count
            for name, count in part.weights.items()
            if setup.engine.dequantises and name != "dense"
        )
    seconds = tokens * operations / setup.peak + steps * copies / setup.bandwidth
    seconds /= setup.split * side.gain
    seconds += steps * len(a.layers) * side.layer
    if setup.split > 1:
        seconds += (
            2 * len(a.layers) * (steps * side.wait + _reduce_bytes(setup, tokens) / side.link)
        )
    return tokens / seconds


def _bytes(setup: _Setup, tokens: int, *, good: bool) -> dict[str, float]:
    """What one GPU's memory must give for a step, by format."""
    w = setup.work
    experts = w.touched(tokens) * (1.0 if good else _busiest(setup, tokens))
    total: dict[str, float] = {}
    for part, share in ((w.always, 1.0), (w.head, 1.0), (w.experts, experts)):
        for name, size in part.bytes.items():
            total[name] = total.get(name, 0.0) + size * share / setup.split
    return total


def _busiest(setup: _Setup, tokens: int) -> float:
    """How much more than its share of the experts in use the busiest GPU has, dealt by chance."""
    used = setup.architecture.experts * setup.work.touched(tokens)
    if setup.dealt == 1 or not used:
        return 1.0
    return min(setup.dealt, 1 + sqrt(2 * log(setup.dealt) * (setup.dealt - 1) / used))


def _past(setup: _Setup) -> float:
    return cache_bytes(setup.architecture, setup.context, setup.value_bytes, setup.split)


def _reduce_bytes(setup: _Setup, tokens: int) -> float:
    """What each GPU sends in an all-reduce of these tokens' activations (a ring)."""
    hidden = setup.architecture.hidden_size or 0
    return 2 * (setup.split - 1) / setup.split * 2 * hidden * tokens


def _value_bytes(engine: Engine, kv_cache: str) -> float:
    rows = [row for row in engine.kv_cache if row.runs]
    return next((row.bytes for row in rows if row.name == kv_cache), rows[0].bytes)


class _Rows(NamedTuple):
    """The rows that a set-up is reckoned with; `nearest` are formats without one of their own."""

    decode: dict[str, list[Efficiency]]
    prefill: dict[str, list[Efficiency]]
    latency: Latency
    nearest: frozenset[str]

    @property
    def all(self) -> Iterable[Efficiency | Latency]:
        for rows in (*self.decode.values(), *self.prefill.values()):
            yield from rows
        yield self.latency


def _rows(setup: _Setup, graphs: bool) -> _Rows:
    engine, experts = setup.engine, bool(setup.work.experts)
    decode, prefill, nearest = {}, {}, set()
    for name in setup.work.formats:
        decode[name], own = engine.measured("decode", name, experts, 1)
        prefill[name], too = engine.measured("prefill", name, experts, setup.context)
        if not (own and too):
            nearest.add(name)
    return _Rows(decode, prefill, engine.latency_of(graphs, experts), frozenset(nearest))


def _side(setup: _Setup, rows: _Rows, linked: bool, *, good: bool) -> _Side:
    def share(found: list[Efficiency], name: str) -> float:
        wider = _WIDER if name in rows.nearest else 1.0
        if good:
            return min(1.0, max(row.high for row in found) * wider)
        return min(row.low for row in found) / wider

    spread = max(1, min(setup.gpus, ceil(setup.context / setup.engine.memory.step_tokens)))
    spread = spread if setup.engine.shards == "layer" else 1
    return _Side(
        decode={name: share(found, name) for name, found in rows.decode.items()},
        prefill={name: share(found, name) for name, found in rows.prefill.items()},
        layer=(rows.latency.low_us if good else rows.latency.high_us) * 1e-6,
        wait=_WAIT[linked][0 if good else 1],
        link=setup.link_bytes * _LINK[linked][1 if good else 0],
        hop=_HOP[0 if good else 1],
        gain=spread if good else 1 + (spread - 1) / 3,
        good=good,
    )


def _explain(
    setup: _Setup, rows: _Rows, step: _Step, concurrency: int, limit: float
) -> Iterable[str]:
    card, read = setup.card, sum(_bytes(setup, 1, good=True).values())
    yield (
        f"A token reads {read / 1e9:.2f} GB of weights on each GPU's turn and"
        f" {_past(setup) / 1e9:.2f} GB of its past: at {card.bandwidth_gbs:.0f} GB/s no more than"
        f" {_short(limit)} tokens/s."
    )
    if setup.work.experts and concurrency > 1:
        touched = setup.work.touched(concurrency)
        yield f"{concurrency} tokens together need {touched:.0%} of the experts."
    for name, found in sorted(rows.decode.items()):
        low, high = min(row.low for row in found), max(row.high for row in found)
        near = ", of the nearest format, and widened" if name in rows.nearest else ""
        yield f"{setup.engine.title} reads {name} at {low:.0%} to {high:.0%} of that{near}."
    yield (
        f"Each layer costs {rows.latency.low_us:.0f} to {rows.latency.high_us:.0f} µs more"
        f" ({rows.latency.measured})."
    )
    yield (
        f"At worst a step of {concurrency} takes {step.total * 1e3:.1f} ms: memory"
        f" {step.memory * 1e3:.1f}, arithmetic {step.compute * 1e3:.1f}, kernels"
        f" {step.kernels * 1e3:.1f}, links {step.links * 1e3:.1f}."
    )


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"
