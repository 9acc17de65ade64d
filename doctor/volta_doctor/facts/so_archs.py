"""The `so_archs` section: the machine code and PTX in every extension that a server may load."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class SoArchsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine code (SASS) and PTX in every extension that a server may load."""


def collect(probe: Probe) -> SoArchsFacts:
    raise CannotLook("not collected yet")
