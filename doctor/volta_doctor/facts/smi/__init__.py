"""The `smi` section: how `nvidia-smi -q -x` ends, and the few fields that NVML does not have.

All else in its XML (table.py) is for the `nvml` section, where NVML cannot be asked.
"""

import re
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec

from volta_doctor.facts.nvml import NvmlFacts
from volta_doctor.facts.smi import table
from volta_doctor.probe import Probe

LIMIT_S = 10.0
COMMAND = ("nvidia-smi", "-q", "-x")
_KEPT_OUTPUT = 500  # characters; enough for any message of nvidia-smi


class SmiGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of the XML; a field is None where nvidia-smi writes N/A or leaves it out.

    `remapped_rows` is text: the four fields of R450 and newer, for cards that remap rows.
    """

    subject: str
    driver_model_current: str | None = None
    driver_model_pending: str | None = None
    remapped_rows: str | None = None


class SmiFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of nvidia-smi; without a `path` it is not installed.

    A None `exit_code` with a `path` means that it gave no answer within ten seconds. `output` is
    what it said in place of XML.
    """

    path: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    output: str = ""
    gpus: list[SmiGpu] = []

    @property
    def timed_out(self) -> bool:
        """Whether nvidia-smi hung."""
        return self.path is not None and self.exit_code is None


class Answer(NamedTuple):
    """One run, and what its XML says of the GPUs; None where it printed none."""

    facts: SmiFacts
    nvml: NvmlFacts | None


def ask(probe: Probe) -> Answer:
    """Run nvidia-smi where it is installed; collectors share it through `probe.once(ask)`."""
    path = probe.which(COMMAND[0])
    if path is None:
        return Answer(SmiFacts(), None)
    done = probe.run(*COMMAND, limit=LIMIT_S)
    log = table.root(done.stdout)
    said = "" if log is not None else re.sub(r"\s+", " ", f"{done.stdout} {done.stderr}").strip()
    facts = SmiFacts(
        path=path,
        exit_code=done.exit_code,
        seconds=round(done.seconds, 3),
        output=said[:_KEPT_OUTPUT],
        gpus=[smi_gpu(gpu) for gpu in log.iter("gpu")] if log is not None else [],
    )
    return Answer(facts, table.facts_of(log) if log is not None else None)


def smi_gpu(gpu: ElementTree.Element) -> SmiGpu:
    """Return the fields of one GPU that are no reading of NVML's."""

    def field(path: str) -> str | None:
        said = (gpu.findtext(path) or "").strip()
        return None if said in ("", "N/A") else said

    remapped = [
        f"{row.tag.removeprefix('remapped_row_')} {row.text}"
        for row in gpu.iterfind("remapped_rows/*")
    ]
    return SmiGpu(
        subject=field("uuid") or str(gpu.get("id")),
        driver_model_current=field("driver_model/current_dm"),
        driver_model_pending=field("driver_model/pending_dm"),
        remapped_rows=", ".join(r for r in remapped if "histogram" not in r)
        or field("remapped_rows"),
    )


def collect(probe: Probe) -> SmiFacts:
    """Say how nvidia-smi ends."""
    return probe.once(ask).facts
