"""From the outcome of choosing to the report: verdict, reasons, cautions."""

import shlex
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from volta_doctor.catalog import compat
from volta_doctor.findings import Finding, Status
from volta_doctor.preflight.model import told
from volta_doctor.preflight.running import variables
from volta_doctor.preflight.subject import Subject
from volta_doctor.sizing.memory import usable
from volta_doctor.words import few, one_line, several
from volta_provision.plan import report
from volta_provision.plan.candidates import Candidate, Task
from volta_provision.plan.choose import Chosen, lack, preference
from volta_provision.plan.hosts import Host
from volta_provision.plan.remedies import would_fit
from volta_provision.plan.report import (
    Asked,
    Caution,
    Choice,
    HostTold,
    Other,
    Outcome,
    Plan,
    Verdict,
)
from volta_provision.stack import EMBEDDED

_GIB = 2**30
_SENTENCE = 600  # characters of one that holds names of a checkpoint
_NEIGHBOUR = 1 << 30  # bytes; a driver and a display take less of a GPU


def refused(task: Task, asked: Asked, fails: Sequence[Finding]) -> Plan:
    """Report on a checkpoint that cannot be served, whatever serves it."""
    ids = few(list(dict.fromkeys(finding.id for finding in fails)))
    reason = f"{ids} fail, and no engine gets past that; `volta-doctor model {_path(task)}`"
    reason += " tells all and what to do"
    cautions = [_caution(finding) for finding in fails]
    return _plan(task, asked, "does not run", reason, cautions=cautions)


def untold(task: Task, asked: Asked, reason: str) -> Plan:
    """Report on a checkpoint of which too little can be read to plan anything."""
    contents = task.checkpoint.contents
    if contents.kind == "none" and contents.configs:
        reason += " A model in one file has no index: that file is needed to plan for it."
    return _plan(task, asked, "could not tell", reason, cautions=[])


def made(task: Task, asked: Asked, chosen: Chosen, of_model: Sequence[Finding]) -> Plan:
    """Report on the choice; `of_model` are the findings on the checkpoint for itself."""
    first = chosen.first
    findings = [*of_model, *first.findings] if first.runs else []
    cautions = [_caution(finding) for finding in findings if finding.status is Status.WARN]
    cautions += _untold(task, findings)
    if first.runs:
        cautions += _neighbours(first)
    if asked.lowered:
        cautions.append(_lowered(asked))
    verdict = _verdict(first, cautions)
    notes = [*(first.memory.notes if first.memory else ())]
    notes += [f"{f.id}: {f.message}" for f in findings if f.status is Status.INFO]
    return _plan(
        task,
        asked,
        verdict,
        _reason(chosen.first),
        choice=_choice(task, chosen),
        cautions=cautions,
        others=[_other(one, chosen) for one in chosen.others],
        would_fit=would_fit(first, chosen.others, task) if verdict == "does not run" else [],
        notes=notes,
    )


def _plan(
    task: Task,
    asked: Asked,
    verdict: Verdict,
    reason: str,
    *,
    choice: Choice | None = None,
    cautions: list[Caution],
    others: Sequence[Other] = (),
    would_fit: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Plan:
    return Plan(
        schema=report.SCHEMA,
        tool=f"volta-stack {version('volta-stack')}",
        verdict=verdict,
        exit_code=report.EXIT_CODES[verdict],
        reason=one_line(reason, _SENTENCE),
        model=told(Subject(task.checkpoint, task.scales)),
        hosts=[_host(host) for host in task.hosts],
        asked=asked,
        choice=choice,
        cautions=cautions,
        others=list(others),
        would_fit=list(would_fit),
        notes=[one_line(note, _SENTENCE) for note in notes],
    )


def _verdict(first: Candidate, cautions: Sequence[Caution]) -> Verdict:
    if first.runs:
        return "runs, but" if cautions else "runs"
    return "could not tell" if first.untold else "does not run"


def _reason(first: Candidate) -> str:
    wanted, title, card = first.wanted, first.engine.title, first.seats.card.title
    what = f"{several(wanted.concurrency, 'request')} of {wanted.context} tokens at once"
    if first.untold:
        return first.untold
    if first.ends:
        ends = f"{title} ends with: {first.ends}"
        return ends if wanted.engine else f"no engine runs it on {card}; {ends}"
    where = f"{first.tensor_parallel} x {card}"
    if first.runs:
        return f"{what} on {where}"
    lacks = f"lacks {lack(first) / _GIB:.1f} GiB"
    return f"{title}, which comes nearest, {lacks} on a GPU of {where} for {what}"


def _choice(task: Task, chosen: Chosen) -> Choice | None:
    first = chosen.first
    if first.memory is None:
        return None
    engine, found = first.engine, first.seats
    return Choice(
        engine=engine.name,
        title=engine.title,
        version=engine.version,
        tensor_parallel_size=first.tensor_parallel,
        expert_parallel_size=first.expert_parallel,
        gpus={} if found.first_ones else {name: list(own) for name, own in found.indices.items()},
        env=variables(task.checkpoint, engine) | _visible(first),
        command=engine.words(first.flags),
        memory=report.memory(first.memory, usable(found.cards)),
        max_context=first.memory.max_context,
        max_concurrency=first.memory.max_concurrency,
        speed=report.paces(first.speed) if first.speed and first.runs else None,
        no_speed=first.no_speed if first.runs else "",
        because=_because(first, chosen) if first.runs else "",
        note=engine.note if first.runs else "",
    )


def _visible(first: Candidate) -> dict[str, str]:
    """Name the GPUs where the engine would take others; where hosts differ the report tells."""
    found = first.seats
    suffices = found.first_ones and (found.whole or first.engine.shards != "layer")
    if suffices or found.same is None:
        return {}
    # CUDA counts the fastest card first where it is not told to count as NVML does.
    names = ",".join(map(str, found.same))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": names}


def _because(first: Candidate, chosen: Chosen) -> str:
    running = [one for one in chosen.others if one.runs]
    if not running:
        return "no other engine runs it"
    if not first.speed:
        return "no speed is known, so with the fewest GPUs"
    fastest = max([first, *running], key=lambda one: one.pace)
    if fastest is first:
        return "the fastest of those that run it"
    return f"about as fast as {fastest.engine.title}, on {several(first.tensor_parallel, 'GPU')}"


def _other(one: Candidate, chosen: Chosen) -> Other:
    outcome, says = _told(one, chosen.first)
    return Other(
        engine=one.engine.name,
        title=one.engine.title,
        version=one.engine.version,
        outcome=outcome,
        says=one_line(says, _SENTENCE),
    )


def _told(one: Candidate, first: Candidate) -> tuple[Outcome, str]:
    if one.runs:
        return "runs", _behind(one, first)
    if one.ends:
        return "ends", one.ends
    if one.untold:
        return "not told", one.untold
    on = several(one.tensor_parallel, "GPU")
    return "lacks memory", f"lacks {lack(one) / _GIB:.1f} GiB on a GPU, on {on}"


def _behind(one: Candidate, first: Candidate) -> str:
    on = several(one.tensor_parallel, "GPU")
    if not one.speed:
        return f"runs on {on}: {one.no_speed}"
    figures = f"{report.paces(one.speed).decode_all.told} tokens/s in all on {on}"
    slower, gpus, *_, not_own, _ = preference(one, [first, one])
    if slower:
        return f"{figures}: slower"
    if gpus > first.tensor_parallel:
        return f"{figures}: no faster, and it takes more GPUs"
    own = not_own and first.engine.name == EMBEDDED
    return f"{figures}: about as fast{', and not our own engine' if own else ''}"


def _host(host: Host) -> HostTold:
    titles = [compat().cards[gpu.model].title for gpu in host.gpus]
    return HostTold(name=host.name, told_by=host.told_by, gpus=titles, notes=list(host.notes))


def _caution(finding: Finding) -> Caution:
    where = "" if finding.subject in ("model", "host") else f"{finding.subject}: "
    return Caution(
        level="fail" if finding.status is Status.FAIL else "warn",
        id=finding.id,
        message=one_line(f"{where}{finding.message}", _SENTENCE),
        fix=finding.remedy.fix,
    )


def _untold(task: Task, findings: Sequence[Finding]) -> Iterator[Caution]:
    """What could not be looked at, as one: without shards that is nearly all."""
    ids = list(dict.fromkeys(f.id for f in findings if f.status is Status.UNKNOWN))
    if not ids:
        return
    message = f"{several(len(ids), 'check')} could not tell: {few(ids)}"
    if task.checkpoint.contents.kind == "index":
        message = f"planned from the index's names and total size, without the weights; {message}"
    yield Caution(
        level="warn",
        id="not-seen",
        message=message,
        fix=f"volta-doctor model {_path(task)} tells why",
    )


def _neighbours(first: Candidate) -> Iterator[Caution]:
    held = max(first.seats.cards.used)
    if held >= _NEIGHBOUR:
        yield Caution(
            level="warn",
            id="neighbours",
            message=f"other processes hold up to {held / _GIB:.1f} GiB of a GPU",
            fix="stop them, and plan with --idle as if they were not there",
        )


def _lowered(asked: Asked) -> Caution:
    return Caution(
        level="warn",
        id="lowered",
        message=(
            f"planned for {several(asked.concurrency, 'request')} of {asked.context} tokens:"
            " the usual 16 of 8192 do not fit"
        ),
        fix="choose with --context and --concurrency what the memory goes to",
    )


def _path(task: Task) -> str:
    return shlex.quote(str(task.checkpoint.path))
