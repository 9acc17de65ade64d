"""A snapshot: every section of facts with its source, its time and, where it failed, why.

One snapshot is one JSON file. It replays to the same verdict on any machine. Newer tools may add
keys; another `schema` number is refused.
"""

from datetime import datetime, timezone
from typing import Generic, TypeVar

import msgspec

from volta_doctor.facts.active import ActiveFacts
from volta_doctor.facts.checkpoint import CheckpointsFacts
from volta_doctor.facts.containers import ContainersFacts
from volta_doctor.facts.dkms import DkmsFacts
from volta_doctor.facts.expect import Expect
from volta_doctor.facts.ext_cache import ExtCacheFacts
from volta_doctor.facts.history import HistoryFacts
from volta_doctor.facts.host import HostFacts
from volta_doctor.facts.kernel_log import KernelLogFacts
from volta_doctor.facts.modules import ModulesFacts
from volta_doctor.facts.nvml import NvmlFacts
from volta_doctor.facts.packages import PackagesFacts
from volta_doctor.facts.pci import PciFacts
from volta_doctor.facts.processes import ProcessesFacts
from volta_doctor.facts.python_envs import PythonEnvsFacts
from volta_doctor.facts.release import ReleaseFacts
from volta_doctor.facts.serve import ServeFacts
from volta_doctor.facts.service import ServiceFacts
from volta_doctor.facts.smi import SmiFacts
from volta_doctor.facts.so_archs import SoArchsFacts
from volta_doctor.facts.toolchain import ToolchainFacts
from volta_doctor.facts.topo import TopoFacts
from volta_doctor.facts.units import UnitsFacts

SCHEMA = 1

T = TypeVar("T")


class Missing(Exception):  # noqa: N818 - it is an answer, not an accident
    """A check asked for a fact that the snapshot does not hold; the text says why."""


class Section(msgspec.Struct, Generic[T], frozen=True, kw_only=True, omit_defaults=True):
    """One section: `data` when it could be collected (`ok`), else the `error` that says why not.

    `seconds` is how long the collector took. `not_here` says that it could look and there is no
    such thing on this host.
    """

    ok: bool
    seconds: float = 0.0
    data: T | None = None
    error: str | None = None
    not_here: bool = False

    def __post_init__(self) -> None:
        if self.ok and self.data is None:
            raise ValueError("a section that is ok must have data")
        if not self.ok and not self.error:
            raise ValueError("a section that is not ok must say its error")

    def need(self) -> T:
        """Return the data. Raises Missing with the reason where there is none."""
        if self.data is None:
            raise Missing(self.error or "not collected")
        return self.data


def absent() -> "Section[T]":
    """Stand for a section that a snapshot does not hold."""
    return Section(ok=False, error="the snapshot has no such section")


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All sections. To add one: a module in this package, a field here, a row in gather.py.

    `expect` is no section: the judge puts there what the profile says of such a host.
    """

    host: Section[HostFacts] = msgspec.field(default_factory=absent)
    pci: Section[PciFacts] = msgspec.field(default_factory=absent)
    modules: Section[ModulesFacts] = msgspec.field(default_factory=absent)
    nvml: Section[NvmlFacts] = msgspec.field(default_factory=absent)
    smi: Section[SmiFacts] = msgspec.field(default_factory=absent)
    kernel_log: Section[KernelLogFacts] = msgspec.field(default_factory=absent)
    packages: Section[PackagesFacts] = msgspec.field(default_factory=absent)
    dkms: Section[DkmsFacts] = msgspec.field(default_factory=absent)
    processes: Section[ProcessesFacts] = msgspec.field(default_factory=absent)
    topo: Section[TopoFacts] = msgspec.field(default_factory=absent)
    serve: Section[ServeFacts] = msgspec.field(default_factory=absent)
    units: Section[UnitsFacts] = msgspec.field(default_factory=absent)
    containers: Section[ContainersFacts] = msgspec.field(default_factory=absent)
    checkpoint: Section[CheckpointsFacts] = msgspec.field(default_factory=absent)
    python_envs: Section[PythonEnvsFacts] = msgspec.field(default_factory=absent)
    so_archs: Section[SoArchsFacts] = msgspec.field(default_factory=absent)
    ext_cache: Section[ExtCacheFacts] = msgspec.field(default_factory=absent)
    toolchain: Section[ToolchainFacts] = msgspec.field(default_factory=absent)
    history: Section[HistoryFacts] = msgspec.field(default_factory=absent)
    active: Section[ActiveFacts] = msgspec.field(default_factory=absent)
    release: Section[ReleaseFacts] = msgspec.field(default_factory=absent)
    service: Section[ServiceFacts] = msgspec.field(default_factory=absent)
    expect: Expect | None = None


SECTIONS = tuple(name for name in Facts.__struct_fields__ if name != "expect")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Facts with who took them and when (`taken`: ISO 8601, UTC).

    In a `redacted` one stand-ins take the place of what names the site.
    """

    schema: int
    tool: str
    taken: str
    facts: Facts
    redacted: bool = False


class _Header(msgspec.Struct):
    schema: int


class SnapshotError(ValueError):
    """A snapshot that cannot be read; the message names the field and what is wrong with it."""


def encode(snapshot: Snapshot) -> bytes:
    """Return the snapshot as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=1) + b"\n"


def decode(data: bytes) -> Snapshot:
    """Read a snapshot. Raises SnapshotError."""
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema != SCHEMA:
            raise SnapshotError(
                f"the snapshot has schema {schema}, this volta-doctor reads schema {SCHEMA}"
            )
        snapshot = msgspec.json.decode(data, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from error
    if not _is_time(snapshot.taken):
        raise SnapshotError(
            f"not a snapshot: no time with its zone: {snapshot.taken!r} - at `$.taken`"
        )
    return snapshot


def _is_time(text: str) -> bool:
    try:
        time = datetime.fromisoformat(text)
        time.astimezone(timezone.utc)
    except (ValueError, OverflowError):  # the latter at the ends of the calendar
        return False
    return time.utcoffset() is not None
