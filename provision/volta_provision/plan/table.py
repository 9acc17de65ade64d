"""The plan for a reader at a terminal: one screen, plain ASCII, the verdict first."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from rich.text import Text

from volta_doctor.preflight.model import Model
from volta_doctor.report import wrap
from volta_doctor.words import several
from volta_provision.plan.report import Choice, Memory, Pace, Paces, Plan

_GIB = 2**30
_VERDICT_STYLES = ("bold green", "bold yellow", "bold red", "bold magenta")  # by exit code
_LABEL = 9  # columns before what a line tells

# What a GPU holds, in the order of the bar: field, its letter there, its name, its colour.
_PARTS = (
    ("neighbours", "N", "neighbours", "red"),
    ("context", "C", "CUDA", "magenta"),
    ("weights", "W", "weights", "blue"),
    ("embeddings", "E", "embeddings", "cyan"),
    ("state", "S", "state", "green"),
    ("kv_cache", "K", "KV cache", "green"),
    ("activations", "A", "activations", "yellow"),
    ("graphs", "G", "graphs", "magenta"),
)


def render(plan: Plan, file: TextIO, verbose: bool) -> str:
    """Return the page in the width and colours of `file`; verbose adds how figures were made."""
    return wrap.printed(file, lambda width: _Page(width, verbose).lines(plan))


class _Page(NamedTuple):
    """How wide and how full the page is."""

    width: int
    verbose: bool

    def lines(self, plan: Plan) -> Iterator[Text]:
        """Tell all of it, the verdict first."""
        for line in wrap.prose(f"{plan.verdict}: {plan.reason}", self.width):
            line.stylize(_VERDICT_STYLES[plan.exit_code])
            yield line
        yield from self.told("model", _model(plan.model))
        for host in plan.hosts:
            kinds = [f"{host.gpus.count(kind)} x {kind}" for kind in dict.fromkeys(host.gpus)]
            notes = "".join(f"; {note}" for note in host.notes)
            yield from self.told("host", f"{host.name or host.told_by}: {', '.join(kinds)}{notes}")
        if plan.choice:
            yield from self.choice(plan, plan.choice)
        for caution in plan.cautions:
            fix = f" Fix: {caution.fix}" if caution.fix and self.verbose else ""
            yield from self.told("warning", f"{caution.id}: {caution.message}{fix}", "yellow")
        for fit in plan.would_fit:
            yield from self.told("fits", fit, "green")
        for other in plan.others:
            label = "behind" if other.runs else "not"
            yield from self.told(label, f"{other.title} {other.version}: {other.says}")
        for note in plan.notes if self.verbose else ():
            yield from self.told("note", note)

    def choice(self, plan: Plan, choice: Choice) -> Iterator[Text]:
        """Tell the engine, the command, the memory and the speed."""
        runs = plan.exit_code < 2
        parallel = [several(choice.tensor_parallel_size, "GPU")]
        if choice.expert_parallel_size > 1:
            parallel.append(f"experts over {choice.expert_parallel_size}")
        because = f"; {choice.because}" if choice.because else ""
        name = f"{choice.title} {choice.version}"
        yield from self.told("engine", f"{name} on {', '.join(parallel)}{because}")
        for host, indices in choice.gpus.items():
            yield from self.told("GPUs", f"{host}: {', '.join(map(str, indices))}")
        if runs:
            words = [f"{key}={shlex.quote(value)}" for key, value in choice.env.items()]
            words += [shlex.quote(word) for word in choice.command]
            yield from wrap.command(words, self.width, f"{'start':<{_LABEL - 1}}", " " * _LABEL)
        for count, memory in _alike(choice.memory):
            yield from self.memory(count, memory)
        if choice.speed:
            yield from self.speed(choice.speed, plan.asked.concurrency)
        if runs:
            yield from self.told(
                "limits",
                f"{plan.asked.concurrency} requests up to {choice.max_context} tokens each, or"
                f" {choice.max_concurrency} of {plan.asked.context}",
            )

    def memory(self, count: int, memory: Memory) -> Iterator[Text]:
        """Draw what a GPU holds, and give the figures."""
        label = f"{count} GPUs" if count > 1 else "GPU"
        held = memory.total - memory.free
        figures = f" {_gib(held)} of {_gib(memory.total)}"
        room = self.width - _LABEL - len(figures) - 2
        yield _bar(memory, max(room, 10), f"{label:<{_LABEL}}", figures)
        parts = [
            f"{letter} {name} {_gib(getattr(memory, field))}"
            for field, letter, name, _ in _PARTS
            if getattr(memory, field)
        ]
        last = f"free {_gib(memory.free)}" if memory.free >= 0 else f"lacks {_gib(-memory.free)}"
        if memory.budget < memory.total:
            last += f"; the engine may take {_gib(memory.budget)}"
        yield from self.told("", f"{', '.join(parts)}, {last}")

    def speed(self, speed: Paces, concurrency: int) -> Iterator[Text]:
        """Give the ranges, and what they come from."""
        yield from self.told(
            "tokens/s",
            f"decode {_pace(speed.decode)} alone, {_pace(speed.decode_each)} each and"
            f" {_pace(speed.decode_all)} in all at {concurrency}; prefill {_pace(speed.prefill)};"
            f" bound by {speed.bound}",
        )
        for line in speed.explained if self.verbose else ():
            yield from self.told("", line)
        for source in speed.sources if self.verbose else ():
            yield from self.told("", f"source: {source}")

    def told(self, label: str, text: str, style: str = "bold") -> Iterator[Text]:
        """Wrap a text behind its label, its further lines below it."""
        for number, line in enumerate(wrap.prose(f"{label:<{_LABEL}}{text}", self.width, 0, 9)):
            if number == 0:
                line.stylize(style, 0, len(label))
            yield line


def _model(model: Model) -> str:
    formats = ", ".join(f"{share.modules} {share.format}" for share in model.formats)
    size = f"{model.parameters / 1e9:.3g} billion weights" if model.parameters else ""
    held = f"{_gib(model.bytes)} on disk" if model.bytes else "no weights here, only their index"
    return "; ".join(filter(None, [model.architecture, size, held, formats]))


def _alike(memories: list[Memory]) -> list[tuple[int, Memory]]:
    """GPUs that hold the same are told once."""
    return [(memories.count(memory), memory) for memory in dict.fromkeys(memories)]


def _bar(memory: Memory, width: int, label: str, figures: str) -> Text:
    """Draw the parts to scale; what does not fit goes beyond the bracket."""
    line = Text(label, style="bold")
    scale = width / max(memory.total, memory.total - memory.free)
    drawn = held = 0
    bar = Text()
    for field, letter, _, colour in _PARTS:
        held += getattr(memory, field)
        cells = round(held * scale) - drawn
        bar.append(letter * cells, colour)
        drawn += cells
    bar.append("." * (width - drawn), "dim")
    end = round(memory.total * scale)
    return Text.assemble(line, "[", bar[:end], "]", bar[end:], figures)


def _pace(pace: Pace) -> str:
    low, high = _figures(pace.low), _figures(pace.high)
    return low if low == high else f"{low}-{high}"


def _figures(value: float) -> str:
    """Two significant figures: more would be pride."""
    if value < 10:
        return f"{value:.1f}"
    digits = len(str(int(value))) - 2
    return str(round(value, -digits) if digits > 0 else round(value)).removesuffix(".0")


def _gib(number: int) -> str:
    return f"{number / _GIB:.1f} GiB"
