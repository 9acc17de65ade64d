"""The `history` section: earlier samples of counters, to tell a rise from an old scar.

`remember` adds one sample a run to a state file, `collect` reads them back, and `from_snapshot`
takes the sample that a saved snapshot is.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from volta_doctor.facts.nvml import GpuFacts, NvLinkFacts, value
from volta_doctor.probe import CannotLook, Probe

if TYPE_CHECKING:
    from volta_doctor.facts.model import Facts, Snapshot

SCHEMA = 1
OF_ROOT = "/var/lib/volta-doctor/history.json"
_OF_USER = "volta-doctor/history.json"  # under $XDG_STATE_HOME
# What is kept: up to this age (s), the first sample in every so many seconds; none beyond.
_KEPT = ((600, 10), (86_400, 3_600), (30 * 86_400, 86_400))


class _Counters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of a sample's parts: zeros are not written, None is what NVML did not tell."""


class LinkSample(_Counters, frozen=True):
    """Error counters of one NVLink; `crc` is the sum of its two CRC counters."""

    replays: int | None = 0
    recoveries: int | None = 0
    crc: int | None = 0


class GpuSample(_Counters, frozen=True):
    """Counters of one GPU, `event_reasons` as NVML gives them, and its links in their order."""

    ecc_corrected: int | None = 0
    retired_double_bit: int | None = 0
    pcie_replays: int | None = 0
    event_reasons: int | None = 0
    nvlinks: list[LinkSample] = []


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs by UUID at a `time` in seconds since the epoch, on the host's clock."""

    time: int
    gpus: dict[str, GpuSample]


class HistoryFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Earlier samples, oldest first; none on the first run."""

    samples: list[Sample]


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    samples: list[Sample]


class _NotOurs(CannotLook):
    """The state file holds something else."""


def crc_errors(link: NvLinkFacts) -> int | None:
    """Return a link's CRC errors of flits and of data, None where NVML tells neither."""
    told = [c for c in map(value, (link.crc_flit, link.crc_data)) if c is not None]
    return sum(told) if told else None


def state_file(probe: Probe) -> str | None:
    """Return where this user's history is kept, None where there is no home for it."""
    state, home = probe.env.get("XDG_STATE_HOME", ""), probe.env.get("HOME", "")
    if state.startswith("/"):  # a relative one is to be ignored (XDG Base Directory Specification)
        return f"{state}/{_OF_USER}"
    if probe.is_root:
        return OF_ROOT
    return f"{home}/.local/state/{_OF_USER}" if home else None


def collect(probe: Probe) -> HistoryFacts:
    """Read the state file. Raises CannotLook where there is one that cannot be read."""
    path = state_file(probe)
    return HistoryFacts(samples=_load(probe, path) if path else [])


def from_snapshot(snapshot: "Snapshot") -> HistoryFacts:
    """Take a snapshot as the one earlier sample. Raises CannotLook where it holds no GPU."""
    sample = _sample(snapshot.facts)
    if sample is None:
        raise CannotLook("the older snapshot holds no counters: NVML told of no GPU, or no time")
    return HistoryFacts(samples=[sample])


def remember(probe: Probe, snapshot: "Snapshot") -> str | None:
    """Add this run's sample to the state file, and thin the older ones.

    Returns why it could not be written, None when it was, or when there is no GPU to remember. A
    file with something else in it is kept beside the new one as history.json.bad.
    """
    sample = _sample(snapshot.facts)
    if sample is None:
        return None
    path = state_file(probe)
    if path is None:
        return "no place to keep the history in: neither XDG_STATE_HOME nor HOME is set"
    real = probe.path(path)
    part = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        try:
            samples = _load(probe, path)
        except _NotOurs:
            real.replace(f"{real}.bad")
            samples = []
        samples = thin([*samples, sample])
        real.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(_File(schema=SCHEMA, samples=samples)))
        part.replace(real)
    except CannotLook as reason:
        return str(reason)
    except OSError as error:
        _remove(part)
        return f"{path}: {error.strerror}"
    return None


def thin(samples: list[Sample]) -> list[Sample]:
    """Keep what the table of ages says, seen from the newest; none from later than that one."""
    now = samples[-1].time
    kept: dict[tuple[int, int], Sample] = {}
    for sample in samples:
        age = now - sample.time
        every = next((every for limit, every in _KEPT if 0 <= age <= limit), None)
        if every:
            kept.setdefault((every, sample.time // every), sample)
    return list(kept.values())


def _load(probe: Probe, path: str) -> list[Sample]:
    if not probe.exists(path):
        return []
    try:
        file = msgspec.json.decode(probe.data(path), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _NotOurs(f"{path} is not a history of volta-doctor: {error}") from error
    if file.schema != SCHEMA:
        raise _NotOurs(f"{path} has schema {file.schema}, this volta-doctor reads schema {SCHEMA}")
    return sorted(file.samples, key=lambda sample: sample.time)


def _sample(facts: "Facts") -> Sample | None:
    host, nvml = facts.host.data, facts.nvml.data
    if host is None or not host.time or nvml is None:
        return None
    gpus = {str(gpu.uuid): _counters(gpu) for gpu in nvml.gpus if value(gpu.uuid)}
    return Sample(time=host.time, gpus=gpus) if gpus else None


def _counters(gpu: GpuFacts) -> GpuSample:
    double_bit = value(gpu.retired_pages.double_bit)
    return GpuSample(
        ecc_corrected=value(gpu.ecc.volatile_corrected),
        retired_double_bit=None if double_bit is None else len(double_bit),
        pcie_replays=value(gpu.pcie.replays),
        event_reasons=value(gpu.event_reasons),
        nvlinks=[
            LinkSample(
                replays=value(link.replays),
                recoveries=value(link.recoveries),
                crc=crc_errors(link),
            )
            for link in value(gpu.nvlinks) or []
        ],
    )


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
