"""From a model's name and hosts to a plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.findings import Status
from volta_doctor.preflight.judge import judge
from volta_doctor.preflight.subject import Subject
from volta_provision.errors import StackError
from volta_provision.plan.candidates import Task, Wanted, model_rows
from volta_provision.plan.choose import choose
from volta_provision.plan.hosts import Host
from volta_provision.plan.make import made, refused, untold
from volta_provision.plan.model import find_model
from volta_provision.plan.report import Asked, Plan
from volta_provision.plan.write import stack_of
from volta_provision.stack import Stack, read_models
from volta_runtime.checkpoint.checkpoint import inspect
from volta_runtime.checkpoint.scales import read_scales


@dataclass(frozen=True)
class Outcome:
    """A plan, and the stack that it makes; None where nothing runs."""

    plan: Plan
    stack: Stack | None


def planned(
    name: str,
    hosts: Sequence[Host],
    wanted: Wanted,
    may_lower: frozenset[str] = frozenset(),
    all_scales: bool = False,
) -> Outcome:
    """Plan for a model on hosts; `may_lower` names what of `wanted` the user did not ask for.

    Raises StackError where the question itself makes no sense: no such model, more GPUs than there
    are, a longer context than the model knows.
    """
    path = find_model(name)
    checkpoint = inspect(path)
    task = Task(
        name=str(path),
        checkpoint=checkpoint,
        scales=read_scales(checkpoint, all_scales),
        hosts=hosts,
        facts=_poorest(hosts),
    )
    wanted = _within(task, wanted, may_lower)
    subject = Subject(checkpoint, task.scales)
    findings = judge(subject, [model_checks()[check_id] for check_id in model_rows()])
    if fails := [f for f in findings if f.status is Status.FAIL and not f.folded_under]:
        return Outcome(refused(task, _asked(wanted), fails), None)
    try:
        task.weights  # noqa: B018 - whatever is planned needs them
    except Missing as reason:
        return Outcome(untold(task, _asked(wanted), str(reason)), None)
    chosen = choose(task, wanted, may_lower)
    asked = _asked(chosen.first.wanted, chosen.lowered)
    plan = made(task, asked, chosen, findings)
    model = name if name in read_models() else str(path.absolute())
    return Outcome(plan, stack_of(chosen.first, model) if chosen.first.runs else None)


def _asked(wanted: Wanted, lowered: bool = False) -> Asked:
    return Asked(context=wanted.context, concurrency=wanted.concurrency, lowered=lowered)


def _within(task: Task, wanted: Wanted, may_lower: frozenset[str]) -> Wanted:
    """Return what is wanted, no longer than the model's own context. Raises StackError."""
    if (wanted.tensor_parallel_size or 1) > task.most:
        poorest = min(task.hosts, key=lambda host: len(host.gpus))
        raise StackError(
            f"--tensor-parallel-size {wanted.tensor_parallel_size}: {poorest.name or '--count'} has"
            f" {len(poorest.gpus)} Volta GPUs"
        )
    longest = task.checkpoint.architecture.max_position
    if longest is None or wanted.context <= longest:
        return wanted
    if "context" in may_lower:
        return replace(wanted, context=longest)
    raise StackError(f"--context {wanted.context}: the model is made for {longest} tokens at most")


def _poorest(hosts: Sequence[Host]) -> Facts:
    """Return the facts of the host with the least memory available."""
    told = [host.facts for host in hosts if host.facts.host.data]
    return min(told, key=_available, default=Facts())


def _available(facts: Facts) -> int:
    return (facts.host.data and facts.host.data.available_bytes) or 0
