"""What people tried: a fault that is gone with one switch, and is there without it.

Such a comparison decides on any card and with any version. It is told in a sentence ("with X it
works"), or shown: a run without the switch that goes wrong, and one with it that does not. A
switch that the text also calls useless decides nothing.

To add one: a row in SWITCHES.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.logs.text import Line, Text
from volta_doctor.why.case import Case
from volta_doctor.why.commands import command_of
from volta_doctor.why.last_resort import is_error
from volta_doctor.why.outcomes import outcome_of
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.vocabulary import FLAGS, GARBAGE, HANGS, SLOW

# Answers that are wrong, in words and in figures: a score of 0, a value that is none.
_NO_VALUE = re.compile(
    r"\bNaNs?\b|\b(?:inf|nan)/(?:inf|nan)\b|[=:] ?-?inf\b"
    r"|\|\s*(?:acc|acc_norm|exact_match)\s*\|[^\n]*\b0\.0+\b",
    FLAGS,
)


class Switch(NamedTuple):
    """What somebody sets, what it decides if the fault is gone with it, and which faults count.

    `name` is how command lines and people write it, `faults` are what must be told of a run
    without it: none, where nobody sets it for another reason.
    """

    decides: str
    name: re.Pattern[str]
    says: str
    faults: tuple[re.Pattern[str], ...] = ()


def named(pattern: str) -> re.Pattern[str]:
    """Compile the ways in which people write a switch."""
    return re.compile(pattern, FLAGS)


WRONG = (GARBAGE, _NO_VALUE)
SWITCHES = (
    Switch(
        "p2p-broken",
        named(
            r"NCCL_P2P_DISABLE['\"]?(?:=|: ?) ?['\"]?1|NCCL_P2P_LEVEL=(?:LOC|0)\b"
            r"|GGML_CUDA_NO_PEER_COPY\S*"
            r"|(?:disabl\w+|turn\w* off|switch\w* off) (?:NCCL )?(?:P2P|peer[- ]to[- ]peer)\b"
            r"|(?:P2P|peer[- ]to[- ]peer) (?:is |was )?(?:disabled|(?:turned |switched )?off)\b"
            r"|(?:关闭|禁用) ?(?:NCCL )?P2P"
        ),
        "With peer-to-peer off it works.",
    ),
    Switch(
        "custom-allreduce-topology",
        named(
            r"--disable-custom-all-?reduce|disable_custom_all_reduce['\"]?[=:] ?True"
            r"|(?:disabl\w+|turn\w* off|switch\w* off) (?:the )?custom all[-_ ]?reduce"
            r"|custom all[-_ ]?reduce (?:is |was )?(?:disabled|(?:turned |switched )?off)\b"
        ),
        "With the engine's own all-reduce off it works.",
    ),
    Switch(
        "iommu",
        named(
            r"iommu=pt|(?:intel|amd)_iommu=off"
            r"|(?:disabl\w+|turn\w* off|switch\w* off) (?:the )?(?:IOMMU|VT-d|AMD-Vi)\b"
            r"|(?:IOMMU|VT-d|AMD-Vi) (?:is |was )?(?:disabled|(?:turned |switched )?off)\b"
        ),
        "With the IOMMU in passthrough mode or off it works.",
    ),
    Switch(
        "acs",
        named(
            r"(?:disabl\w+|turn\w* off|switch\w* off) (?:the )?(?:PCIe )?ACS\b"
            r"|\bACS (?:is |was )?(?:disabled|(?:turned |switched )?off)\b"
        ),
        "With ACS off on the bridges it works.",
    ),
    Switch(
        "cuda-graph-capture",
        named(
            r"--enforce-eager|enforce_eager['\"]?[=:] ?True|--disable-cuda-graph"
            r"|cudagraph_mode['\"]?[=:] ?['\"]?NONE|GGML_CUDA_DISABLE_GRAPHS=1"
            r"|without CUDA graphs?|CUDA graphs? (?:disabled|(?:turned |switched )?off)"
        ),
        "Without CUDA graphs it works.",
        (HANGS,),
    ),
    Switch(
        "fp16-overflow",
        named(
            r"dtype['\"]?[ =:]{1,2} ?['\"]?(?:torch\.)?(?:bfloat16|bf16|float32|fp32|float)\b"
            r"|\b(?:with|in|using|to) (?:bfloat16|bf16|float32|fp32)\b|--(?:bf16|fp32)\b"
        ),
        "The values are wrong in float16, and right in a type of more range.",
        WRONG,
    ),
    Switch(
        "attn-backend-nan",
        named(
            r"(?:-fa|--flash-attn|flash_attn|FLASH_ATTENTION)[ =](?:off|0|false)\b"
            r"|(?:without|don't use|no|disabl\w+) (?:-fa\b|flash[- ]attention)"
            r"|flash[- ]attention (?:is |was )?(?:disabled|(?:turned |switched )?off)\b"
        ),
        "With flash attention the answers are wrong, and without it right.",
        WRONG,
    ),
)

# ---- What a sentence tells.

# What an engine reports of its own settings tells of no experiment.
_LOGGED = re.compile(
    r"^\W*(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b|\b(?:INFO|DEBUG|WARNING|ERROR)\b.{0,60}\.(?:py|go|c\w)\b"
    r"|NCCL (?:INFO|WARN)"
    r"|allreduce is disabled because|specify disable_|Namespace\("
)


class Outcome(NamedTuple):
    """Whether the fault is gone with the switch, and the lines that say or show it."""

    is_gone: bool
    evidence: list[Evidence]


def _told(text: Text, at: int, switch: Switch) -> Iterator[Outcome]:
    """Yield what the sentences of one line, which the next may end, tell of a switch."""
    line = text.lines[at]
    if _LOGGED.search(line.text):
        return
    following = text.lines[at + 1] if at + 1 < len(text.lines) else None
    goes_on = following and not _is_head(following) and not _LOGGED.search(following.text)
    for match in switch.name.finditer(line.text):
        before, after = line.text[: match.start()], line.text[match.end() :]
        if following and goes_on:
            after = f"{after} {following.text}"
        is_gone = outcome_of(before, after)
        if is_gone is not None:
            yield Outcome(is_gone, [text.evidence(line)])


# ---- What two runs show.

_COMMAND = re.compile(
    r"^\W{0,4}(?:\w+=\S+ +)*(?:sudo |\.{0,2}/?(?:[\w.-]+/)*(?:python[\d.]*|vllm|torchrun|lmdeploy"
    r"|llama-[\w-]+|mpirun|srun|[\w-]+_perf|sglang|ollama|accelerate|deepspeed|lm_eval|trtexec)\s"
    r"|docker run )"
)
_COMMENT = re.compile(r"^#\s?\S.{0,160}$")
_WORD = re.compile(r"[A-Za-z][\w.-]{3,}")


def _is_command(line: Line) -> bool:
    return command_of(line) is not None or bool(_COMMAND.search(line.text))


def _is_head(line: Line) -> bool:
    return _is_command(line) or bool(_COMMENT.match(line.text))


class _Run(NamedTuple):
    """A command, or a comment that stands for one, and what it printed."""

    head: Line
    output: list[Line]

    def fault(self, faults: tuple[re.Pattern[str], ...]) -> Line | None:
        """Return the first line that shows one of these faults."""
        every = (self.head, *self.output)
        return next((n for n in every if any(fault.search(n.text) for fault in faults)), None)


def _runs(text: Text, switch: Switch) -> list[_Run]:
    """Return the runs that a text shows; a comment heads one only where it says how it was run."""
    found: list[_Run] = []
    for line in text.lines:
        comment = _COMMENT.match(line.text) and ("dtype" in line.text or "--" in line.text)
        if _is_command(line) or comment or (switch.name.search(line.text) and _is_head(line)):
            found.append(_Run(line, []))
        elif found and line.text.strip():
            found[-1].output.append(line)
    return found


def _shown(text: Text, switch: Switch) -> Outcome | None:
    """Compare a run without the switch that goes wrong with one that has it."""
    faults = switch.faults or (HANGS, GARBAGE, SLOW, _NO_VALUE)
    runs = _runs(text, switch)
    with_it = [run for run in runs if _is_set(switch, run.head.text)]
    for run in with_it:
        if run.fault((*faults, HANGS)) or any(is_error(line) for line in run.output):
            return Outcome(False, [])
    for run in with_it:
        words = set(_WORD.findall(run.head.text)) - set(_WORD.findall(_name_in(switch, run.head)))
        for other in runs:
            same = words & set(_WORD.findall(other.head.text)) or _COMMENT.match(run.head.text)
            fault = None if other in with_it or not same else other.fault(faults)
            if fault and run.output:
                seen = (other.head, fault, run.head, run.output[0])
                return Outcome(True, list(dict.fromkeys(map(text.evidence, seen))))
    return None


def _is_set(switch: Switch, head: str) -> bool:
    """Say whether a command sets a switch; a line that also tells the outcome is a sentence."""
    match = switch.name.search(head)
    return bool(match and outcome_of(head[: match.start()], head[match.end() :]) is None)


def _name_in(switch: Switch, line: Line) -> str:
    match = switch.name.search(line.text)
    return match[0] if match else ""


# ---- What they decide.


@lru_cache(maxsize=1)
def decided(case: Case) -> dict[str, list[Evidence]]:
    """Return the causes that experiments in a case decide, with the lines that do."""
    found = {switch.decides: gone_with(case, switch) for switch in SWITCHES}
    return {decides: seen for decides, seen in found.items() if seen}


def gone_with(case: Case, switch: Switch) -> list[Evidence]:
    """Return the lines by which the fault is gone with a switch, and nothing speaks against it."""
    seen = list(_outcomes(case, switch)) if case.lines(switch.name, 1) else []
    if not (seen and all(outcome.is_gone for outcome in seen) and _is_faulty(case, switch)):
        return []
    return [e for outcome in seen for e in outcome.evidence][:6]


def _outcomes(case: Case, switch: Switch) -> Iterator[Outcome]:
    for text in case.printed:
        places = [at for at, line in enumerate(text.lines) if switch.name.search(line.text)]
        for at in places:
            yield from _told(text, at, switch)
        if places and (shown := _shown(text, switch)):
            yield shown


def _is_faulty(case: Case, switch: Switch) -> bool:
    """Say whether one of the faults that count stands in the text at all."""
    return not switch.faults or any(case.lines(fault, 1) for fault in switch.faults)


def _register(switch: Switch) -> None:
    @rule(switch.decides)
    def experiment(case: Case, row: Row) -> Iterator[Finding]:
        if seen := decided(case).get(switch.decides):
            finding = row.fail(switch.says, *dict.fromkeys(seen))
            yield likely(finding, "the text compares them itself")


for _switch in SWITCHES:
    _register(_switch)
