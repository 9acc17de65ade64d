"""The seconds of a step, from what it reads and computes and what an engine reaches of it.

A step reads the weights that its tokens need and their past (bytes over bandwidth), computes with
them (operations over the tensor cores' peak), starts kernels layer by layer, and waits for the
other GPUs twice a layer.
"""

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import NamedTuple

from volta_doctor.catalog.compatibility import Card
from volta_doctor.catalog.engines import Engine
from volta_doctor.sizing.work import Work, attention_flops, past_bytes


@dataclass(frozen=True)
class Setup:
    """A model's work on GPUs of one kind.

    gpus: all of them; split: those that share each layer; dealt: those that whole experts are dealt
    to. value_bytes: of the KV cache. link_bytes: a second, in one direction.
    """

    work: Work
    card: Card
    engine: Engine
    gpus: int
    split: int
    dealt: int
    context: int
    value_bytes: float
    link_bytes: float

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.work.architecture.layers)

    @property
    def bandwidth(self) -> float:
        """Bytes a second of one GPU's memory."""
        return self.card.bandwidth_gbs * 1e9

    @property
    def peak(self) -> float:
        """Operations a second of the GPUs that share a layer."""
        return self.card.tensor_tflops * 1e12 * self.split

    @property
    def past(self) -> float:
        """Bytes that one sequence's token reads of its past on each GPU."""
        return past_bytes(self.work.architecture, self.context, self.value_bytes, self.split)

    def read(self, tokens: int, *, good: bool) -> dict[str, float]:
        """Bytes of weights, by format, that each GPU's memory gives for so many tokens."""
        w = self.work
        experts = w.touched(tokens) * (1.0 if good else self._busiest(tokens))
        total: dict[str, float] = {}
        for part, share in ((w.always, 1.0), (w.head, 1.0), (w.experts, experts)):
            for name, size in part.bytes.items():
                total[name] = total.get(name, 0.0) + size * share / self.split
        return total

    def _busiest(self, tokens: int) -> float:
        """How much more than its share of the experts in use one GPU has, dealt by chance."""
        used = self.work.architecture.experts * self.work.touched(tokens)
        if self.dealt == 1 or not used:
            return 1.0
        return min(self.dealt, 1 + sqrt(2 * log(self.dealt) * (self.dealt - 1) / used))

    def sent(self, tokens: int) -> float:
        """Bytes that each GPU sends in an all-reduce of these tokens' activations (a ring)."""
        hidden = self.work.architecture.hidden_size or 0
        return 2 * (self.split - 1) / self.split * 2 * hidden * tokens


class Side(NamedTuple):
    """One end of all ranges: shares of the roofline, by format where they differ, and seconds.

    layer: what each costs beside; sequence: what each further sequence adds to that; expert: what
    each matrix of an expert adds to a step of a prompt. gain: how many times as fast a prompt is on
    GPUs that have some layers each.
    """

    good: bool
    decode: dict[str, float]
    prefill: dict[str, float]
    past: float
    layer: float
    sequence: float
    wait: float
    link: float
    hop: float
    expert: float
    gain: float


class Step(NamedTuple):
    """Seconds of one step of decoding, by what they go to."""

    good: bool
    memory: float
    compute: float
    kernels: float
    links: float

    @property
    def total(self) -> float:
        """All of it: at best reading and computing overlap, at worst neither hides the other."""
        busy = max(self.memory, self.compute) if self.good else self.memory + self.compute
        return busy + self.kernels + self.links

    @property
    def bound(self) -> str:
        """What takes most of it."""
        words = ("memory bandwidth", "arithmetic", "starting kernels", "links between GPUs")
        seconds = (self.memory, self.compute, self.kernels, self.links)
        return words[seconds.index(max(seconds))]


def step(setup: Setup, side: Side, tokens: int) -> Step:
    """One token for each of so many sequences."""
    w = setup.work
    memory = sum(size / side.decode[n] for n, size in setup.read(tokens, good=side.good).items())
    memory += tokens * setup.past / side.past
    operations = 0.0
    for part, share in ((w.always, 1.0), (w.head, 1.0), (w.experts, w.chosen)):
        operations += sum(2 * share * n / side.prefill[name] for name, n in part.weights.items())
    links = 0.0
    if setup.split > 1:
        links = 2 * setup.layers * (side.wait + setup.sent(tokens) / side.link)
    elif setup.gpus > 1:
        links = (setup.gpus - 1) * side.hop
    return Step(
        good=side.good,
        memory=memory / setup.bandwidth,
        compute=tokens * operations / setup.peak,
        kernels=setup.layers * (side.layer + (tokens - 1) * side.sequence),
        links=links,
    )


def prompt(setup: Setup, side: Side) -> float:
    """Seconds of a prompt as long as the context."""
    w, tokens = setup.work, setup.context
    steps = ceil(tokens / setup.engine.memory.step_tokens)
    operations = attention_flops(w.architecture, tokens) / max(side.prefill.values())
    copied = 0.0
    for part, share in ((w.always, 1.0), (w.experts, w.chosen)):
        operations += sum(2 * share * n / side.prefill[name] for name, n in part.weights.items())
        if setup.engine.dequantises:  # an FP16 copy is written, then read by the matrix product
            copied += sum(
                part.bytes[name] + 4 * n for name, n in part.weights.items() if name != "dense"
            )
    seconds = tokens * operations / setup.peak
    seconds += steps * copied / setup.bandwidth / setup.split
    used = w.touched(min(tokens, setup.engine.memory.step_tokens))
    experts = sum(layer.experts or 0 for layer in w.architecture.layers) * used
    seconds += steps * 3 * experts * side.expert  # gate, up and down
    seconds = seconds / side.gain + steps * setup.layers * side.layer
    if setup.split > 1:
        seconds += 2 * setup.layers * (steps * side.wait + setup.sent(tokens) / side.link)
    return seconds
