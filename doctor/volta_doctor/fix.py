"""The plan: what to do about each problem, at what risk, by which steps, and the way back."""

import shlex
import textwrap
from collections.abc import Sequence
from itertools import groupby

import msgspec

from volta_doctor.catalog import checks
from volta_doctor.facts.model import Facts
from volta_doctor.findings import HOST, Finding, Remedy, Status, Step

SAFE = ("none", "reconfigure", "restart")
_STOPS = {"restart", "try-restart", "stop", "--gpu-reset"}
_NARROWEST = 40  # columns
_BY_HAND = {
    "reboot": "it takes a reboot",
    "rebuild": "it takes a build",
    "hardware": "it takes hands on the machine",
}


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy, and what was found of each subject that it is for."""

    id: str
    status: Status
    found: dict[str, str]
    remedy: Remedy

    @property
    def for_you(self) -> str:
        """Why a person must do it, empty where `fix --apply` can."""
        if self.remedy.risk not in SAFE:
            return _BY_HAND[self.remedy.risk]
        return "" if self.remedy.steps else "it takes judgement"

    @property
    def stops(self) -> bool:
        """Whether it stops something that runs."""
        return self.remedy.risk == "restart" or any(
            not _STOPS.isdisjoint(step.run) for step in self.remedy.steps
        )

    def depends_on(self, other: "Fix") -> bool:
        """Whether it makes no sense where the other could not be done: it is its consequence."""
        return self.id in checks()[other.id].hides


def plan(findings: Sequence[Finding], info: bool = False) -> list[Fix]:
    """Return the remedies of what fails and warns, in the findings' order.

    Waived findings and those folded under a cause are left out; `info` takes in what is merely
    worth knowing. One remedy for several subjects is one fix.
    """
    levels = (Status.FAIL, Status.WARN, *([Status.INFO] if info else []))
    fixes: dict[tuple[str, bytes], Fix] = {}
    for finding in findings:
        if finding.status not in levels or finding.folded_under or finding.waived:
            continue
        key = (finding.id, msgspec.json.encode(finding.remedy))
        known = fixes.get(key)
        fixes[key] = Fix(
            id=finding.id,
            status=known.status if known else finding.status,
            found=(known.found if known else {}) | {finding.subject: finding.message},
            remedy=finding.remedy,
        )
    return list(fixes.values())


def servers(facts: Facts, fix: Fix) -> list[str]:
    """Name the running servers that a fix may stop: those it is about, else all of this host."""
    if serve := facts.serve.data:
        about = {server.name for server in serve.servers} & {*fix.found}
        return [
            f"{server.name} (pid {', '.join(map(str, server.pids))})"
            for server in serve.servers
            if server.pids and (server.name in about or not about)
        ]
    service = facts.service.data
    if service and service.unit_state.main_pid:
        return [f"{service.unit} (pid {service.unit_state.main_pid})"]
    return []


def wrapped(words: str, width: int, first: str = "", further: str = "") -> list[str]:
    """Wrap prose, but no word of it; `first` and `further` indent the lines."""
    return textwrap.wrap(
        words,
        max(width, _NARROWEST),
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def text(fixes: Sequence[Fix], facts: Facts, width: int) -> str:
    """Return the plan as a person reads it: what, why, at what risk, how, and how back.

    Prose is wrapped to `width`, commands and files are not. What differs in its subjects and steps
    alone is told together.
    """
    lines: list[str] = []

    def say(words: str) -> None:
        lines.extend(wrapped(words, width, "   ", "     "))

    def alike(numbered: tuple[int, Fix]) -> tuple[str, ...]:
        fix = numbered[1]
        return fix.id, fix.status, fix.remedy.fix, fix.remedy.risk, fix.for_you

    for _, group in groupby(enumerate(fixes, 1), alike):
        numbers, same = zip(*group, strict=True)
        first, steps = same[0], [step for fix in same for step in fix.remedy.steps]
        number = f"{numbers[0]}-{numbers[-1]}" if numbers[1:] else f"{numbers[0]}"
        lines.append(f"{number}. {first.status.value.upper()} {first.id}")
        found = [(name, message) for fix in same for name, message in fix.found.items()]
        for message in dict.fromkeys(message for _, message in found):
            subjects = [name for name, of_it in found if of_it == message and name != HOST]
            say(f"{', '.join(subjects)}: {message}" if subjects else message)
        say(f"fix: {first.remedy.fix}")
        whose = f"for you: {first.for_you}" if first.for_you else "fix --apply does it"
        say(f"risk: {first.remedy.risk}; {whose}")
        stopped = [name for fix in same if fix.stops for name in servers(facts, fix)]
        if stopped and not first.for_you:
            say(f"running now: {', '.join(dict.fromkeys(stopped))}")
        for step in steps:
            lines += [f"     {line}" for line in _step_lines(step)]
        lines.append("")
    return "\n".join(lines)


def _step_lines(step: Step) -> list[str]:
    undo = shlex.join(step.undo)
    if step.write:
        back = "the file as it was, or none" + (f"; then {undo}" if undo else "")
        content = [f"  | {line}" for line in step.content.splitlines()]
        return [f"write {step.write}:", *content, f"  undo: {back}"]
    return [f"$ {shlex.join(step.run)}", f"  undo: {undo or 'none, what it changes is not kept'}"]
