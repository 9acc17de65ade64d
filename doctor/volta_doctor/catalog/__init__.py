"""The two tables that the doctor and the playbooks read: checks.yaml and compat.yaml."""

from functools import cache
from importlib.resources import files
from typing import Literal, TypeVar

import msgspec

from volta_doctor.findings import HOST, Evidence, Finding, Remedy, Status

T = TypeVar("T")

# What a row needs, by the name of the snapshot section that holds it; other names are their own.
SECTION_OF_NEED = {"smi_xml": "smi", "torch_env": "python_env", "unit_files": "service"}


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check as the catalogue describes it.

    `gpu` marks a check that makes sense only with a Volta card. `hides` may name checks that do
    not exist yet.
    """

    id: str
    area: str
    title: str
    needs: list[str]
    rule: dict[Literal["fail", "warn", "info", "ok"], str]
    hides: list[str]
    fix: str
    risk: Literal["none", "restart", "reboot", "rebuild", "reconfigure", "hardware"]
    source: str
    uses: list[str] = []
    blinds: list[str] = []
    volta_note: str = ""
    gpu: bool = False

    @property
    def sections(self) -> list[str]:
        """The snapshot sections without which the verdict is unknown."""
        return _sections(self.needs)

    @property
    def further_sections(self) -> list[str]:
        """The snapshot sections that the verdict takes into account where they are there."""
        return _sections(self.uses)

    def ok(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """The claim in the title holds."""
        return self._finding(Status.OK, message, evidence, subject)

    def info(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """Worth knowing; nothing need be done."""
        return self._finding(Status.INFO, message, evidence, subject)

    def warn(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """It works, and will not stay so."""
        return self._finding(Status.WARN, message, evidence, subject)

    def fail(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """The claim in the title does not hold."""
        return self._finding(Status.FAIL, message, evidence, subject)

    def unknown(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """Could not tell; the message says why."""
        return self._finding(Status.UNKNOWN, message, evidence, subject)

    def skip(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """Does not apply to this host; the message says why."""
        return self._finding(Status.SKIP, message, evidence, subject)

    def _finding(
        self, status: Status, message: str, evidence: tuple[Evidence, ...], subject: str
    ) -> Finding:
        return Finding(
            id=self.id,
            status=status,
            subject=subject,
            title=self.title,
            message=message,
            evidence=list(evidence),
            remedy=Remedy(self.fix, self.risk),
        )


def _sections(names: list[str]) -> list[str]:
    return [SECTION_OF_NEED.get(name, name) for name in names]


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A driver branch: whether it drives Volta, and the month (YYYY-MM) in which NVIDIA ends it."""

    branch: int
    volta: bool
    source: str
    ends: str | None = None


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Driver branches, and the last one that supports Volta."""

    last_branch: int
    flavour: str
    flavour_source: str
    branches: list[Branch]


class Toolkit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA toolkits: the last version for Volta, and the nvcc versions that emit sm_70."""

    last: str
    nvcc_min: str
    nvcc_below: str
    source: str


class TorchBuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the torch wheels of one version and CUDA tag carry sm_70 device code."""

    version: str
    cuda: str
    sm_70: bool
    source: str


class TorchPin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The torch that a profile installs; `version` is a PEP 440 version with its local tag."""

    version: str
    source: str


class Volta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to recognise a Volta card: NVIDIA's PCI device ids from `first` to `last` (hex)."""

    compute_capability: str
    first_device_id: str
    last_device_id: str
    names: dict[str, str]
    source: str


class Compat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The compatibility catalogue: what goes together on Volta, each edge with its source."""

    volta: Volta
    driver: Driver
    toolkit: Toolkit
    torch_builds: list[TorchBuild]
    torch_by_profile: dict[str, TorchPin]


@cache
def checks() -> dict[str, Row]:
    """Return the rows of checks.yaml by id, in the file's order. Raises ValueError on a fault."""
    rows = _load("checks.yaml", list[Row])
    by_id = {row.id: row for row in rows}
    if len(by_id) != len(rows):
        ids = [row.id for row in rows]
        twice = sorted({check_id for check_id in ids if ids.count(check_id) > 1})
        raise ValueError(f"checks.yaml: ids given twice: {', '.join(twice)}")
    return by_id


@cache
def compat() -> Compat:
    """Return compat.yaml. Raises ValueError naming the field that is at fault."""
    return _load("compat.yaml", Compat)


def _load(name: str, kind: type[T]) -> T:
    import msgspec.yaml

    try:
        return msgspec.yaml.decode((files(__name__) / name).read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error
