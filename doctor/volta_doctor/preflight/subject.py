"""What a check of a checkpoint sees, and nothing else."""

from dataclasses import dataclass, field

from volta_doctor.catalog.engines import Engine
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve.engines import Flags
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.scales import Scales


@dataclass(frozen=True)
class Cards:
    """The GPUs that are meant.

    model: a row of compat.yaml's `cards` ("v100-sxm2-16gb"), empty where they differ.
    total, used: bytes of each GPU, and what others hold of it. told_by: flag or source.
    """

    model: str
    total: tuple[int, ...]
    used: tuple[int, ...]
    told_by: str


@dataclass(frozen=True, eq=False)
class Subject:
    """A checkpoint, how it is to be served, and where; one is equal to itself alone.

    engine: None where none was named; a check then says what holds for any. flags: in vLLM's names,
    as they were given. cards: None where neither a flag nor the host tells. host: the facts of this
    host (sections host, nvml, serve), without data where it was not looked at.
    """

    checkpoint: Checkpoint
    scales: Scales
    engine: Engine | None = None
    flags: Flags = field(default_factory=Flags)
    cards: Cards | None = None
    host: Facts = field(default_factory=Facts)
