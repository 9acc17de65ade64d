"""Does a card run this device code? The rules of binary and PTX compatibility.

Machine code runs on the same major and the same or a newer minor compute capability; the driver
compiles PTX for the same or any newer card, if it knows the PTX ISA version. Code for one chip (a)
or one family of chips (f) runs nowhere else. Source: CUDA C++ programming guide, "Compute
capability" and "Binary compatibility"; NVIDIA blog on family-specific features.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from volta_doctor.catalog import compat
from volta_doctor.facts.fatbin import DeviceCode, number
from volta_doctor.facts.packages import branch_of_version

Status = Literal["runs", "runs after JIT", "cannot run", "not known"]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of card by its compute capability (7.0); `known_by` says how it came to be judged."""

    name: str
    capability: str
    known_by: str

    @property
    def arch(self) -> str:
        """The architecture of its machine code: 70."""
        return self.capability.replace(".", "")

    @property
    def is_volta(self) -> bool:
        """Whether the catalogue's rules are about it."""
        return self.capability == compat().volta.compute_capability


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether device code runs, and the reason, a sentence without its full stop."""

    status: Status
    reason: str


def volta() -> Card:
    """Return the card that the catalogue's rules are about."""
    capability = compat().volta.compute_capability
    return Card(name="V100", capability=capability, known_by="the catalogue")


def judge(code: DeviceCode, ptx_isa: Mapping[str, str], card: Card, driver: str | None) -> Verdict:
    """Judge the device code of one file.

    `ptx_isa` has the ISA version (8.7) of PTX by its architecture, as far as it is known. `driver`
    is a version; without one any driver that drives the card may be there.
    """
    if running := [arch for arch in code.sass if _runs(arch, card)]:
        return Verdict(status="runs", reason=f"sm_{running[-1]} code")
    compiled = [_compiles(a, ptx_isa.get(a), driver) for a in code.ptx if _is_for(a, card)]
    for status in ("runs after JIT", "not known"):
        if found := next((verdict for verdict in compiled if verdict.status == status), None):
            return found
    if code.problem or not code:
        return Verdict(status="not known", reason=f"it {code.problem or 'has no device code'}")
    if compiled:
        return compiled[0]
    return Verdict(status="cannot run", reason=f"only {carries(code)}")


def carries(code: DeviceCode) -> str:
    """List what a file carries device code for."""
    found = [f"sm_{arch}" for arch in code.sass] + [f"PTX compute_{arch}" for arch in code.ptx]
    return ", ".join(found) or "no device code"


def _runs(arch: str, card: Card) -> bool:
    """Say whether a card runs machine code for an architecture."""
    if arch.endswith("a"):
        return arch[:-1] == card.arch
    (major, minor), (own_major, own_minor) = divmod(number(arch), 10), divmod(int(card.arch), 10)
    return major == own_major and minor <= own_minor


def _is_for(arch: str, card: Card) -> bool:
    """Say whether PTX for an architecture is for a card, if its driver can read it."""
    return number(arch) <= int(card.arch) if arch.isdigit() else _runs(arch, card)


def _compiles(arch: str, isa: str | None, driver: str | None) -> Verdict:
    """Say whether a driver compiles PTX of an ISA version for a card that it is for."""
    text = f"PTX compute_{arch}"
    branch = branch_of_version(driver) if driver else None
    if isa is None:
        if driver is None:
            return Verdict(status="runs after JIT", reason=f"{text}, which the driver compiles")
        return Verdict(status="not known", reason=f"{text} of an ISA version that it does not tell")
    release, newest = compat().reads_ptx(isa), compat().cuda_releases.rows[-1]
    least = release.driver if release else newest.driver + 1
    needed = f"a driver from {least} on"
    if driver is None:
        status: Status = "runs after JIT" if release else "not known"
        return Verdict(status=status, reason=f"{text}, ISA {isa}, needs {needed}")
    if branch is None or (release is None and branch >= least):
        return Verdict(status="not known", reason=f"{text}, ISA {isa}: driver {driver} may read it")
    if branch < least:
        reason = f"{text} is of ISA {isa}, which needs {needed}; this is {driver}"
        return Verdict(status="cannot run", reason=reason)
    return Verdict(status="runs after JIT", reason=f"{text}, ISA {isa}, which the driver compiles")
