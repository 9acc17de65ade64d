"""Every way to serve a model: an engine on so many GPUs, and the sentence that it ends with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor

from msgspec import structs

from volta_doctor.catalog import Row
from volta_doctor.catalog.engines import Engine, KvCache, engines
from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import SEVERITY, Finding, Status
from volta_doctor.preflight.judge import examine
from volta_doctor.preflight.subject import Subject
from volta_doctor.sizing.memory import MemoryPlan, plan_of, usable
from volta_doctor.sizing.speed import Speed, speed
from volta_doctor.sizing.split import Split
from volta_doctor.sizing.weights import Weights, weights_of
from volta_provision.plan.hosts import Host
from volta_provision.plan.seats import Seats, seats
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.scales import Scales

# Powers of two split the heads of most models; layers can be dealt out to any number of GPUs.
_SIZES = (1, 2, 4, 8, 16)
# A check that looks at one of these judges an engine, its flags or its place, and no model alone.
_OF_A_PLACE = {"serve_flags", "cards", "host"}
_OF_A_CHOICE = {"engine", *_OF_A_PLACE}
RUNS_AT_ALL = "quant-volta"  # the check of an engine and a format
_OUT = (Status.FAIL, Status.UNKNOWN)
_HIGHEST = 0.95  # of a GPU: what is above leaves too little for fragments (mem-fit's limit)
_BY_SUMS = "mem-fit"  # is answered by the very plan of memory that it would make


@dataclass(frozen=True)
class Wanted:
    """What is asked for; None and empty are left to the planner or the engine.

    context: tokens of a request with its answer. concurrency: requests at once.
    """

    context: int
    concurrency: int
    engine: str = ""
    tensor_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    enforce_eager: bool = False


@dataclass(frozen=True)
class Task:
    """A model and where it is to run.

    name: what it is started by. facts: of the host whose memory and disks are looked at. examined:
    what checks said already.
    """

    name: str
    checkpoint: Checkpoint
    scales: Scales
    hosts: Sequence[Host]
    facts: Facts
    examined: dict[object, list[Finding]] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Weights:
        """Its modules, counted. Raises Missing where nothing tells their sizes."""
        return weights_of(self.checkpoint)

    @property
    def most(self) -> int:
        """GPUs that each host has."""
        return min(len(host.gpus) for host in self.hosts)


@dataclass(frozen=True)
class Candidate:
    """An engine on GPUs.

    ends: the sentence that it ends with, empty where it runs or merely lacks memory. untold: why
    that cannot be told, empty where it can. memory, speed: None where it ends before; `no_speed`
    says why it runs at a speed that is not known.
    """

    engine: Engine
    wanted: Wanted
    seats: Seats
    flags: Flags
    tensor_parallel: int
    expert_parallel: int
    findings: Sequence[Finding] = ()
    memory: MemoryPlan | None = None
    speed: Speed | None = None
    no_speed: str = ""
    ends: str = ""
    untold: str = ""

    @property
    def fits(self) -> bool:
        """Whether its memory suffices."""
        return self.memory is not None and self.memory.fits

    @property
    def runs(self) -> bool:
        """Whether it does, as far as can be told."""
        return self.fits and not self.ends and not self.untold

    @property
    def pace(self) -> float:
        """The middle of the tokens/s to be expected of all requests; 0 where none is known."""
        return (self.speed.decode_all.low * self.speed.decode_all.high) ** 0.5 if self.speed else 0


def model_rows() -> list[str]:
    """Return the ids of the checks that judge a model for itself, whatever is to serve it."""
    return [row.id for row in model_checks().values() if not _of_a_choice(row)]


def _of_a_choice(row: Row) -> bool:
    return not _OF_A_CHOICE.isdisjoint((*row.needs, *row.uses))


def candidates(task: Task, wanted: Wanted) -> list[Candidate]:
    """Hold each engine, or the one that is asked for, against each number of GPUs."""
    chosen = [engines()[wanted.engine]] if wanted.engine else engines().values()
    return [
        candidate(task, wanted, engine, size, experts)
        for engine in chosen
        for size, experts in _splits(task, engine, wanted)
    ]


def _splits(task: Task, engine: Engine, wanted: Wanted) -> Iterator[tuple[int, int]]:
    """So many GPUs, and over how many of them experts are dealt out whole."""
    if wanted.tensor_parallel_size:
        sizes = [wanted.tensor_parallel_size]
    elif engine.shards == "none":
        sizes = [1]
    else:
        sizes = sorted({size for size in (*_SIZES, task.most) if size <= task.most})
    for size in sizes:
        yield size, 1
        if engine.expert_parallel and task.checkpoint.architecture.experts and size > 1:
            yield size, size


def candidate(task: Task, wanted: Wanted, engine: Engine, size: int, experts: int) -> Candidate:
    """Judge one engine on so many GPUs, of which the hosts must have enough."""
    found = seats(task.hosts, size)
    if found is None:
        raise ValueError(f"{size} GPUs are asked for, and a host has {task.most}")
    flags = Flags(
        model=task.name,
        tensor_parallel_size=size if size > 1 else None,
        enable_expert_parallel=experts > 1,
        gpu_memory_utilization=wanted.gpu_memory_utilization,
        max_model_len=wanted.context,
        max_num_seqs=wanted.concurrency,
        dtype=wanted.dtype,
        kv_cache_dtype=wanted.kv_cache_dtype,
        enforce_eager=wanted.enforce_eager,
        disable_custom_all_reduce=_without_custom_all_reduce(engine, size, found),
    )
    bare = Candidate(engine, wanted, found, flags, size, experts)
    if size > 1 and engine.shards == "none":
        return replace(bare, ends="it uses one GPU only")
    subject = Subject(task.checkpoint, task.scales, engine, flags, found.cards, task.facts)
    findings: list[Finding] = []
    for row in _rows():
        findings += _examined(task, subject, row)
        if row.id == RUNS_AT_ALL and any(f.status in _OUT for f in findings):
            break  # what its flags would do to a format that it does not run is idle
    judged = replace(bare, findings=findings)
    title = f"{engine.title}: "  # is told beside it
    said = [finding.message.removeprefix(title) for finding in _worst(findings)]
    if any(finding.status is Status.FAIL for finding in findings):
        return replace(judged, ends=said[0])
    if findings[0].status is Status.UNKNOWN:
        return replace(judged, untold=said[0])
    return _sized(judged, task)


def _without_custom_all_reduce(engine: Engine, size: int, found: Seats) -> bool:
    """Say whether vLLM's own all-reduce must go: over PCIe it hung V100s (1Cat-vLLM #430)."""
    return size > 1 and not found.linked and engine.takes("disable_custom_all_reduce")


def _rows() -> list[Row]:
    """Return the checks of a choice, first that of the engine and the format."""
    rows = [row for row in model_checks().values() if row.id != _BY_SUMS and _of_a_choice(row)]
    return sorted(rows, key=lambda row: row.id != RUNS_AT_ALL)


def _examined(task: Task, subject: Subject, row: Row) -> list[Finding]:
    """Run a check, once for all that it looks at: of 100,000 tensors it takes a second."""
    by_place = not _OF_A_PLACE.isdisjoint((*row.needs, *row.uses))
    engine = subject.engine.name if subject.engine else ""
    key = row.id, engine, subject.flags if by_place else None
    if key not in task.examined:
        task.examined[key] = examine(subject, row)
    return task.examined[key]


def _worst(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITY.index(finding.status))


def cache_of(engine: Engine, name: str | None) -> KvCache | None:
    """Return the type of KV cache that an engine is asked for, its own where none is; else None."""
    row = engine.cache(name or "auto")
    return row if row and row.runs else None


def _sized(judged: Candidate, task: Task) -> Candidate:
    """Add memory and speed, and the share of a GPU that it takes to fit."""
    engine, wanted = judged.engine, judged.wanted
    cache = cache_of(engine, wanted.kv_cache_dtype)
    if cache is None:
        known = ", ".join(row.name for row in engine.kv_cache if row.runs)
        asked = wanted.kv_cache_dtype
        return replace(judged, ends=f"it has no KV cache of type {asked} on sm_70, only {known}")
    try:
        for share in _shares(judged):
            memory = plan_of(
                task.weights,
                engine,
                judged.seats.cards,
                Split(judged.tensor_parallel, judged.expert_parallel, engine.shards == "layer"),
                context=wanted.context,
                concurrency=wanted.concurrency,
                utilization=share,
                kv_cache=cache.name,
                eager=wanted.enforce_eager,
            )
            flags = structs.replace(judged.flags, gpu_memory_utilization=share)
            judged = replace(judged, flags=flags, memory=memory)
            if memory.fits:
                break
    except Missing as reason:
        return replace(judged, untold=str(reason))
    return _paced(judged, task, cache.name)


def _shares(judged: Candidate) -> list[float | None]:
    """Return the shares of a GPU to try, None for the engine's own.

    Beside neighbours no more than what they leave free: vLLM does not start for a larger one.
    """
    asked, own = judged.wanted.gpu_memory_utilization, judged.engine.memory.utilization
    if asked or not own or not judged.engine.takes("gpu_memory_utilization"):
        return [asked]
    cards = judged.seats.cards
    totals = usable(cards)
    left = min(1 - used / total for used, total in zip(cards.used, totals, strict=True))
    left = max(0.01, floor(100 * left) / 100)
    shares: list[float | None] = [None if own <= left else left]
    return shares + [share for share in (min(_HIGHEST, left),) if share > own]


def _paced(judged: Candidate, task: Task, kv_cache: str) -> Candidate:
    """Add the speed; where nothing tells it, it runs all the same."""
    try:
        found = speed(
            task.checkpoint,
            judged.engine,
            judged.seats.card,
            tensor_parallel=judged.tensor_parallel,
            expert_parallel=judged.expert_parallel,
            context=judged.wanted.context,
            concurrency=judged.wanted.concurrency,
            linked=judged.seats.linked,
            kv_cache=kv_cache,
            eager=judged.wanted.enforce_eager,
        )
    except Missing as reason:
        return replace(judged, no_speed=str(reason))
    return replace(judged, speed=found)
