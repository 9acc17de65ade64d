"""The `smi` section: how nvidia-smi -q -x ends, and the few fields that NVML cannot give."""

import re
from xml.etree import ElementTree

import msgspec

from volta_doctor.probe import Probe

LIMIT_S = 10.0
COMMAND = ("nvidia-smi", "-q", "-x")
_KEPT_OUTPUT = 500  # characters; enough for any message of nvidia-smi


class SmiGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of the XML; a field is None where nvidia-smi writes N/A or leaves it out."""

    subject: str
    driver_model_current: str | None = None
    driver_model_pending: str | None = None


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


def parse_xml(text: str) -> list[SmiGpu]:
    """Return the GPUs of nvidia-smi's XML, none where the text is not that XML."""
    # The document names an external DTD, which the standard parser never fetches.
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - written by the local driver
    except ElementTree.ParseError:
        return []

    def field(gpu: ElementTree.Element, path: str) -> str | None:
        value = (gpu.findtext(path) or "").strip()
        return None if value in ("", "N/A") else value

    return [
        SmiGpu(
            subject=field(gpu, "uuid") or str(gpu.get("id")),
            driver_model_current=field(gpu, "driver_model/current_dm"),
            driver_model_pending=field(gpu, "driver_model/pending_dm"),
        )
        for gpu in root.iter("gpu")
    ]


def collect(probe: Probe) -> SmiFacts:
    """Run nvidia-smi where it is installed."""
    path = probe.which(COMMAND[0])
    if path is None:
        return SmiFacts()
    done = probe.run(*COMMAND, limit=LIMIT_S)
    gpus = parse_xml(done.stdout)
    said = "" if gpus else re.sub(r"\s+", " ", f"{done.stdout} {done.stderr}").strip()
    return SmiFacts(
        path=path,
        exit_code=done.exit_code,
        seconds=round(done.seconds, 3),
        output=said[:_KEPT_OUTPUT],
        gpus=gpus,
    )
