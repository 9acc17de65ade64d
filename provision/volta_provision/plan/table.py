"""The plan for a reader at a terminal: one screen, plain ASCII, the verdict first."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from rich.text import Text

from volta_doctor.preflight.model import Model
from volta_doctor.report import wrap
from volta_doctor.words import few, several
from volta_provision.plan.report import Choice, HostTold, Memory, Paces, Plan

_GIB = 2**30
_VERDICT_STYLES = ("bold green", "bold yellow", "bold red", "bold magenta")  # by exit code
_LABELS = {"runs": "behind", "not told": "unsure"}  # of other engines; the rest do not run
_LEVELS = {"fail": ("fault", "red"), "warn": ("warning", "yellow")}
_SHOWN = _GIB // 20  # bytes: less is 0.0 GiB
_FEW = 3  # warnings that a short page shows
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
        for line in wrap.prose(f"{plan.model.name}: {_verdict(plan)}: {plan.reason}", self.width):
            line.stylize(_VERDICT_STYLES[plan.exit_code])
            yield line
        yield from self.told("model", _model(plan.model))
        yield from self.hosts(plan.hosts)
        if plan.choice:
            yield from self.choice(plan, plan.choice)
        shown = plan.cautions if self.verbose else plan.cautions[:_FEW]
        for caution in shown:
            label, style = _LEVELS[caution.level]
            text = f"{caution.id}: {caution.message.rstrip('.')}. Fix: {caution.fix}"
            yield from self.short(label, text, style, lines=3)
        if more := len(plan.cautions) - len(shown):
            yield from self.told("", f"and {more} more (-v)")
        for fit in plan.would_fit:
            yield from self.told("instead", fit, "green")
        for other in plan.others:
            label = _LABELS.get(other.outcome, "not")
            yield from self.short(label, f"{other.title} {other.version}: {other.says}")
        for note in plan.notes if self.verbose else ():
            yield from self.told("note", note)
        if plan.choice and plan.choice.note:
            yield from self.short("note", f"{plan.choice.title}: {plan.choice.note}")

    def hosts(self, hosts: list[HostTold]) -> Iterator[Text]:
        """Tell the hosts, those that are alike together."""
        alike: dict[tuple[str, str], list[str]] = {}
        for host in hosts:
            kinds = [f"{host.gpus.count(kind)} x {kind}" for kind in dict.fromkeys(host.gpus)]
            told = ", ".join(kinds), "; ".join(host.notes)
            alike.setdefault(told, []).append(host.name or host.told_by)
        for (gpus, notes), names in alike.items():
            yield from self.told("host", f"{few(names)}: {gpus}{notes and f'; {notes}'}")
        if len(alike) > 1:
            yield from self.told("", "These differ: planned for the least that each of them has.")

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
        yield from self.memory(choice.memory)
        if choice.speed:
            yield from self.speed(choice.speed, plan.asked.concurrency)
        if choice.no_speed:
            yield from self.told("tokens/s", f"not known: {choice.no_speed}")
        if runs:
            most = f"{several(plan.asked.concurrency, 'request')} of {choice.max_context} tokens"
            if choice.max_concurrency > plan.asked.concurrency:
                most += f", or {choice.max_concurrency} of {plan.asked.context}"
            yield from self.told("at most", most)

    def memory(self, memories: list[Memory]) -> Iterator[Text]:
        """Draw what the fullest GPU holds, give the figures, and tell how full the others are."""
        fullest = min(memories, key=lambda one: one.free)
        same = memories.count(fullest)
        held = f" {_gib(fullest.total - fullest.free)} of {_gib(fullest.total)}"
        label = f"{same} GPUs" if same > 1 else "GPU"
        room = self.width - _LABEL - len(held) - 2
        yield _bar(fullest, max(room, 10), f"{label:<{_LABEL}}", held)
        parts = [
            f"{letter} {name} {_gib(getattr(fullest, field))}"
            for field, letter, name, _ in _PARTS
            if getattr(fullest, field) >= _SHOWN
        ]
        lacks = fullest.total - fullest.free - fullest.budget
        own = fullest.budget < fullest.total
        limit = f"; the engine takes {_gib(fullest.budget)} at most" if own else ""
        parts.append(f"lacks {_gib(lacks)}" if lacks > 0 else f"free {_gib(fullest.free)}")
        yield from self.told("", f"{', '.join(parts)}{limit}")
        if rest := [one.total - one.free for one in memories if one != fullest]:
            held = " to ".join(dict.fromkeys([_gib(min(rest)), _gib(max(rest))]))
            yield from self.told("", f"{several(len(rest), 'other GPU')}: {held}")

    def speed(self, speed: Paces, concurrency: int) -> Iterator[Text]:
        """Give the ranges, and what they come from."""
        decode = f"decode {speed.decode.told} alone"
        if concurrency > 1:
            each, together = speed.decode_each.told, speed.decode_all.told
            decode += f", {each} each and {together} in all at {concurrency}"
        yield from self.told(
            "tokens/s", f"{decode}; prefill {speed.prefill.told}; bound by {speed.bound}"
        )
        for line in speed.explained if self.verbose else ():
            yield from self.told("", line)
        for source in speed.sources if self.verbose else ():
            yield from self.told("", f"source: {source}")

    def short(
        self, label: str, text: str, style: str = "bold", *, lines: int = 2
    ) -> Iterator[Text]:
        """Tell what fits on so many lines of a text, all of it where verbose."""
        return self.told(label, text, style, lines=None if self.verbose else lines)

    def told(
        self, label: str, text: str, style: str = "bold", *, lines: int | None = None
    ) -> Iterator[Text]:
        """Wrap a text behind its label, its further lines below it; all of it or `lines`."""
        told = wrap.prose(f"{label:<{_LABEL}}{text}", self.width, 0, _LABEL, lines)
        for number, line in enumerate(told):
            if number == 0:
                line.stylize(style, 0, len(label))
            yield line


def _verdict(plan: Plan) -> str:
    warnings = several(len(plan.cautions), "warning")
    return f"runs, but with {warnings}" if plan.verdict == "runs, but" else plan.verdict


def _model(model: Model) -> str:
    shares = ", ".join(f"{share.modules} {share.format}" for share in model.formats)
    formats = f"modules: {shares}" if shares else ""
    size = f"{model.parameters / 1e9:.3g} billion weights in " if model.parameters else ""
    none = "no weights here, only their index" if model.kind == "index" else "no header of weights"
    held = f"{size}{_gib(model.bytes)}" if model.bytes else none
    return "; ".join(filter(None, [model.architecture, held, formats]))


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


def _gib(number: int) -> str:
    return f"{number / _GIB:.1f} GiB"
